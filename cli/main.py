"""The entry point of the console script `colmlm`, which completes names of commands and runs commands.

Names are completed from the tables, without importing anything else: somebody waits after pressing a key, and
importing Typer takes ten times as long as all the rest. The scripts that `--install-completion` writes are Typer's, so
the answers follow Typer's protocol. Options and their values are completed by Typer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from colmlm.cli.start.commands import COMMANDS, VERBS

Names = Mapping[str, str]  # names with their help


def complete_words(program: str, env: Mapping[str, str]) -> str | None:
    """Give the completions of a command's name, in the form of the shell that asks by `env`; None if there are none."""
    asked, _, shell = env.get(f"_{program.upper()}_COMPLETE", "").partition("_")
    if asked != "complete" or shell not in _SHELLS:
        return None
    *before, begun = _typed_words(shell, env)
    names = {name: said for name, said in _following(before).items() if name.startswith(begun)}
    return _SHELLS[shell](names, env) if names else None


def _following(before: list[str]) -> Names:
    """Give the names of commands that may follow these words; none if options or arguments may follow too."""
    if not before:
        return {name: command.help for name, command in COMMANDS.items()}
    return VERBS.get(before[0], {}) if len(before) == 1 else {}


def _typed_words(shell: str, env: Mapping[str, str]) -> list[str]:
    """Give the words after the program's name, up to the one that is being typed, which may be empty."""
    if shell == "bash":
        words, at = env.get("COMP_WORDS", "").split(), int(env.get("COMP_CWORD", "0"))
        return [*words[1:at], words[at] if at < len(words) else ""]
    line = env.get("_TYPER_COMPLETE_ARGS", "")
    words = line.split()[1:]
    if shell in ("powershell", "pwsh"):  # PowerShell strips the blank at the end of the line
        ends_with_blank = not env.get("_TYPER_COMPLETE_WORD_TO_COMPLETE")
    else:
        ends_with_blank = line.endswith(" ")
    return [*words, ""] if ends_with_blank or not words else words


def _bash(names: Names, env: Mapping[str, str]) -> str:
    return "\n".join([*names, ""])


def _zsh(names: Names, env: Mapping[str, str]) -> str:
    told = "\n".join(f'"{name}":"{said.translate(_ZSH)}"' for name, said in names.items())
    return f"_arguments '*: :(({told}))'\n"


_ZSH = str.maketrans({'"': '""', "'": "''", "$": "\\$", "`": "\\`", ":": r"\\:"})


def _fish(names: Names, env: Mapping[str, str]) -> str | None:
    """Give fish an empty text if it asks whether names follow (exit code 0 affirms), or the names if it asks which."""
    told = "".join(f"{name}\t{said}\n" for name, said in names.items())
    return {"is-args": "", "get-args": told}.get(env.get("_TYPER_COMPLETE_FISH_ACTION", ""))


def _powershell(names: Names, env: Mapping[str, str]) -> str:
    return "".join(f"{name}:::{said}\n" for name, said in names.items())


_SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish, "powershell": _powershell, "pwsh": _powershell}


def main() -> None:
    """Print the completions where a shell asks for them; else import the commands, which takes a while, and run one."""
    if (answer := complete_words("colmlm", os.environ)) is not None:
        sys.stdout.write(answer)
        return
    from colmlm.cli.start.root import app, start

    start(app, "colmlm")


if __name__ == "__main__":
    main()
