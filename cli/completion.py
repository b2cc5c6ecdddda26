"""The names of commands as a shell asks for them while they are typed: from the tables, with nothing else imported.

The scripts that `--install-completion` writes are Typer's, and so is what they understand. It is written here once
more, since somebody waits for the key they pressed and Typer takes ten times as long to import as the rest does
(zsh and fish are told of each command by rich besides). Options and their values are the commands' own: Typer's.
"""

from __future__ import annotations

from collections.abc import Mapping

from colmlm.cli.commands import COMMANDS
from colmlm.cli.verbs import VERBS

Names = Mapping[str, str]  # with what is said of each


def offered(program: str, env: Mapping[str, str]) -> str | None:
    """What the shell that asks in `env` is told; None where nobody asks, or not for a name."""
    asked, _, shell = env.get(f"_{program.upper()}_COMPLETE", "").partition("_")
    if asked != "complete" or shell not in _SHELLS:
        return None
    *before, begun = _typed(shell, env)
    names = {name: said for name, said in _following(before).items() if name.startswith(begun)}
    return _SHELLS[shell](names, env) if names else None


def _following(before: list[str]) -> Names:
    """The names that may follow these words; none where more than names does."""
    if not before:
        return {name: command.help for name, command in COMMANDS.items()}
    return VERBS.get(before[0], {}) if len(before) == 1 else {}


def _typed(shell: str, env: Mapping[str, str]) -> list[str]:
    """The words behind the program's name up to the one that is being typed, which may be empty."""
    if shell == "bash":
        words, at = env.get("COMP_WORDS", "").split(), int(env.get("COMP_CWORD", "0"))
        return [*words[1:at], words[at] if at < len(words) else ""]
    line = env.get("_TYPER_COMPLETE_ARGS", "")
    words = line.split()[1:]
    if shell in ("powershell", "pwsh"):  # its line has lost the blank at its end
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
    """Fish asks twice: whether names follow, to which ending well is yes, and which."""
    told = "".join(f"{name}\t{said}\n" for name, said in names.items())
    return {"is-args": "", "get-args": told}.get(env.get("_TYPER_COMPLETE_FISH_ACTION", ""))


def _powershell(names: Names, env: Mapping[str, str]) -> str:
    return "".join(f"{name}:::{said}\n" for name, said in names.items())


_SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish, "powershell": _powershell, "pwsh": _powershell}
