"""Private directories: who else can change what lies in a directory, and a directory for one account alone.

Another user who can write in a directory above a file can rename that directory and put one of their own in its place.
In a sticky directory such as `/tmp` they cannot, but they can take a name first. So a new directory there has a random
name, and one that is used again is checked.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LONGEST_BASE = 60  # bytes, so that the path of a socket in a directory below it fits

_GROUP_OR_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Exposure:
    """A directory, or a link, that another user can change. `to_group` is True where only the directory's group can."""

    path: Path
    cause: str
    remedy: str
    to_group: bool = False

    def __str__(self) -> str:
        return f"{self.path} {self.cause}"


def find_exposures(path: Path, accounts: Collection[int]) -> Iterator[Exposure]:
    """Find each directory from `path` up to the root that somebody besides root and `accounts` can change.

    Links are followed, and the directories above their targets are checked as well. A missing `path` is skipped.
    """
    pending, seen = [(path.absolute(), True)], set[Path]()
    while pending:
        target, is_wanted = pending.pop()
        for place in (target, *target.parents):
            if place in seen or not os.path.lexists(place):
                continue
            seen.add(place)
            found = place.lstat()
            if stat.S_ISLNK(found.st_mode):
                pending.append((place.parent / place.readlink(), is_wanted and place == target))
            yield from _exposures_of(place, found, accounts, is_within=is_wanted and place == target)


def _exposures_of(
    place: Path, found: os.stat_result, accounts: Collection[int], *, is_within: bool
) -> Iterator[Exposure]:
    """Yield the exposures of one directory or link. A sticky, writable one is exposed only if `is_within`."""
    if found.st_uid not in {0, *accounts}:
        owner = user_name(found.st_uid)
        yield Exposure(place, f"belongs to {owner}", f"Use a directory in which {owner} cannot write.")
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or (mode & stat.S_ISVTX and not is_within):
        return
    if mode & stat.S_IWOTH:
        yield Exposure(place, f"can be written by everybody ({mode:o})", f"chmod o-w {place}")
    elif mode & stat.S_IWGRP and _has_access_list(
        place
    ):  # the group's bits are the most that the list grants
        yield Exposure(
            place, f"can be written through its access control list ({mode:o})", f"chmod g-w {place}"
        )
    elif mode & stat.S_IWGRP and _has_other_members(found.st_gid, accounts):
        cause = f"can be written by its group {group_name(found.st_gid)} ({mode:o})"
        yield Exposure(place, cause, f"chmod g-w {place}", to_group=True)


def _has_access_list(place: Path) -> bool:
    """Say whether a directory has a POSIX access control list. The answer is False on systems other than Linux."""
    if sys.platform != "linux":
        return False
    with suppress(OSError):  # it has none, or its file system knows none
        return bool(os.getxattr(place, "system.posix_acl_access", follow_symlinks=False))
    return False


def _has_other_members(gid: int, accounts: Collection[int]) -> bool:
    """Say whether the group may have a member besides root and `accounts`.

    A directory service need not list the members of a group. So only a user's own group is taken to have no others.
    """
    trusted = [user for uid in (0, *accounts) if (user := _find_user(uid)) is not None]
    own = {user.pw_name for user in trusted if user.pw_gid == gid}
    listed = {user.pw_name for user in pwd.getpwall() if user.pw_gid == gid}
    try:
        group = grp.getgrgid(gid)
    except KeyError:  # a group without a name may have any members
        return True
    return group.gr_name not in own or bool({*listed, *group.gr_mem} - {user.pw_name for user in trusted})


def user_name(uid: int) -> str:
    """Get the name of a user, or "user UID" where the id has no name."""
    return f"user {uid}" if (user := _find_user(uid)) is None else user.pw_name


def _find_user(uid: int) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return None


def group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def is_private(directory: Path, account: pwd.struct_passwd) -> bool:
    """Say whether the account owns the directory, only it can enter, and nobody else can replace the directory."""
    try:
        found = directory.lstat()
    except OSError:
        return False
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == account.pw_uid
    return is_own and is_closed(found) and not any(find_exposures(directory, {account.pw_uid}))


def is_closed(found: os.stat_result) -> bool:
    """Say whether a directory is closed to its group and to others."""
    return not found.st_mode & _GROUP_OR_OTHERS


def close_to_others(directory: Path, account: pwd.struct_passwd) -> None:
    """Set mode 0700 on a directory that the account owns and others can enter. No link is followed."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(opened)
        if found.st_uid == account.pw_uid and not is_closed(found):
            os.fchmod(opened, 0o700)
    finally:
        os.close(opened)


def make_private(account: pwd.struct_passwd) -> Path:
    """Make a directory with a random name and mode 0700 for the account, under a safe directory for temporary files.

    Raises `PermissionError` if there is none.
    """
    made = Path(tempfile.mkdtemp(prefix="colmlm-", dir=find_temporary()))
    if account.pw_uid != os.geteuid():
        os.chown(made, account.pw_uid, account.pw_gid)
    return made


def find_temporary() -> Path:
    """Find a short directory for temporary files in which nobody can replace what this user makes.

    Raises `PermissionError` with the reason for each directory that is not fit.
    """
    reasons = []
    for base in dict.fromkeys((Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"))):
        if (reason := _why_unfit(base)) is None:
            return base
        reasons.append(reason)
    raise PermissionError(" and ".join(reasons))


def _why_unfit(base: Path) -> str | None:
    """Say why no private directory can be made in `base`; None if one can."""
    if len(os.fsencode(base)) > LONGEST_BASE:
        return f"{base} is too long"
    if not os.access(base, os.W_OK | os.X_OK):
        return f"{base} cannot be written"
    if os.geteuid() == 0 and not all(place.stat().st_mode & stat.S_IXOTH for place in (base, *base.parents)):
        return f"{base} is closed to the account that would run the server"
    return next((str(exposure) for exposure in find_exposures(base / "new", {os.geteuid()})), None)


def open_private(file: Path) -> int:
    """Open a file that only its directory's owner and root can open, and create it where it is missing.

    Others who could open a lock file could hold its lock. No link is followed.
    """
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, 0o600)  # earlier releases made it for everybody to read
        return descriptor
    if os.geteuid() == 0:
        owner = file.parent.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor
