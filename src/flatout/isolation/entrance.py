"""The agent's way into a real job whose environment keeps PYTHONPATH out.

A mount namespace in which site-packages shows one more file, the agent's ``.pth``, and nothing else
differs: the job's writes are real. Site-packages itself is read-only there, which only a job that
installs packages into its own interpreter would notice.
"""

from __future__ import annotations

import os

from flatout.isolation import linux


def let_in(pth_folder: str, site_packages: str, *, user_namespace: bool) -> None:
    """Change this process's view of ``site_packages``; for the child between fork and exec.

    As root without a user namespace; else in one that maps this user to itself, in which programs with
    the set-user-ID bit (sudo) have no effect. Raises OSError where that is not permitted.
    """
    user, group = os.getuid(), os.getgid()
    linux.unshare(linux.CLONE_NEWNS | (linux.CLONE_NEWUSER if user_namespace else 0))
    if user_namespace:
        linux.map_identity(user, group)
    # slave: what the machine mounts later still appears, what the job mounts stays with it
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_SLAVE)
    pth = os.open(pth_folder, os.O_PATH | os.O_CLOEXEC)
    site = os.open(site_packages, os.O_PATH | os.O_CLOEXEC)
    cwd = os.getcwd()
    options = f"lowerdir=/proc/self/fd/{pth}:/proc/self/fd/{site}"
    linux.mount("overlay", site_packages, "overlay", linux.MS_RDONLY, options)
    os.chdir(cwd)


def works(pth_folder: str, site_packages: str, *, user_namespace: bool) -> bool:
    """Whether ``let_in`` is permitted here, tried in a child."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            let_in(pth_folder, site_packages, user_namespace=user_namespace)
            status = 0
        finally:
            os._exit(status)
    _, waited = os.waitpid(child, 0)
    return waited == 0
