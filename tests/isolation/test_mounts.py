"""Mount tables as text, and what of them a program can reach."""

from __future__ import annotations

from flatout.isolation import linux
from flatout.isolation.mounts import is_below, mount_of, parse_mountinfo, visible_mounts

TABLE = r"""
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:5 / /dev rw,nosuid shared:2 - devtmpfs udev rw,size=8g
23 22 0:6 / /dev/shm rw,nosuid,nodev - tmpfs tmpfs rw
24 21 0:7 / /proc rw - proc proc rw
25 21 8:2 / /data rw,noatime - xfs /dev/sdb rw
26 25 8:3 / /data/inner ro,relatime - ext4 /dev/sdc rw
27 25 8:4 / /data rw,relatime - ext4 /dev/sdd rw
28 21 0:9 / /mnt/with\040space rw - fuse.sshfs host: rw
29 27 8:5 / /data/inner rw - btrfs /dev/sde ro
30 21 8:6 / /srv/deep/er rw - ext4 /dev/sdf rw
31 21 8:7 / /srv rw - ext4 /dev/sdg rw
"""


def test_mounts_covered_by_later_ones_are_left_out() -> None:
    mounts = parse_mountinfo(TABLE)
    by_path = {mount.path: mount for mount in mounts}
    assert len(by_path) == len(mounts), "each place once"
    assert by_path["/data"].kind == "ext4", "the one stacked on top"
    assert by_path["/data/inner"].kind == "btrfs" and by_path["/data/inner"].read_only
    assert by_path["/srv"].kind == "ext4"
    assert "/srv/deep/er" not in by_path, "its sibling /srv lies over it"


def test_stacked_mount_shows_the_upper_one() -> None:
    table = "1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 / /data rw - xfs b rw\n3 2 8:3 / /data rw - ext4 c rw\n"
    kinds = [mount.kind for mount in parse_mountinfo(table) if mount.path == "/data"]
    assert kinds == ["ext4"]


def test_children_of_a_covered_mount_are_covered() -> None:
    table = (
        "1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 / /data rw - xfs b rw\n"
        "3 2 8:3 / /data/in rw - ext4 c rw\n4 2 8:4 / /data rw - ext4 d rw\n"
    )
    assert [mount.path for mount in parse_mountinfo(table)] == ["/", "/data"]


def test_flags_and_kinds() -> None:
    by_path = {mount.path: mount for mount in parse_mountinfo(TABLE)}
    assert by_path["/dev/shm"].flags == linux.MS_NOSUID | linux.MS_NODEV
    assert by_path["/mnt/with space"].kind == "fuse"
    assert by_path["/proc"].pseudo and by_path["/dev"].pseudo and not by_path["/"].pseudo
    assert mount_of("/dev/shm/x", list(by_path.values())).path == "/dev/shm"


def test_below() -> None:
    assert is_below("/a/b", "/a") and is_below("/a", "/a") and is_below("/a", "/")
    assert not is_below("/ab", "/a") and not is_below("/", "/a")


def test_the_real_table_has_a_root_and_parents_first() -> None:
    paths = [mount.path for mount in visible_mounts()]
    assert paths[0] == "/"
    assert len(paths) == len(set(paths))
