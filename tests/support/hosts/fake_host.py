"""A host of files: what a kernel shows of limits, below a directory of a test."""

from __future__ import annotations

import os
from pathlib import Path

GIB = 1 << 30
MIB = 1 << 20
NO_LIMIT = 9223372036854771712
"""What version 1 writes where there is no limit."""


class FakeHost:
    """Files of a kernel, with 8 GiB of memory of which 2 GiB are in use."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.memory(8 * GIB, 2 * GIB)
        self.write("proc/vmstat", oom_kill=0)

    def write(self, path: str, text: str | int = "", **fields: int) -> None:
        """Write a file: its text, or a name and a number on each line."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{text}\n" + "".join(f"{name} {n}\n" for name, n in fields.items()))

    def memory(self, total: int, used: int) -> None:
        fields = {"MemTotal:": total // 1024, "MemAvailable:": (total - used) // 1024}
        lines = "".join(f"{name} {size} kB\n" for name, size in fields.items())
        self.write("proc/meminfo", lines)

    def threads(self, used: int, limit: int) -> None:
        self.write("proc/loadavg", f"0.1 0.2 0.3 1/{used} 4711")
        self.write("proc/sys/kernel/pid_max", limit)
        self.write("proc/sys/kernel/threads-max", 4 * limit)

    def version_2(self, path: str, mount: str = "sys/fs/cgroup") -> None:
        """Say that this process is in the group ``path``, and mount version 2."""
        self.write("proc/self/cgroup", f"0::{path}")
        self.write(f"{mount}/cgroup.controllers", "memory pids")

    def group_2(self, path: str, used: int, limit: int | str, files: int = 0) -> None:
        """Make a group of version 2; ``files`` bytes of its memory are pages of files."""
        group = f"sys/fs/cgroup{path}"
        self.write(f"{group}/memory.current", used)
        self.write(f"{group}/memory.max", limit)
        self.write(f"{group}/memory.stat", anon=used - files, inactive_file=files)
        self.write(f"{group}/memory.events", oom=0, oom_kill=3)
        self.write(f"{group}/memory.events.local", oom=0, oom_kill=0)

    def group_1(self, path: str, used: int, limit: int, files: int = 0) -> None:
        """Make a group of version 1."""
        group = f"sys/fs/cgroup/memory{path}"
        self.write(f"{group}/memory.usage_in_bytes", used)
        self.write(f"{group}/memory.limit_in_bytes", limit)
        self.write(f"{group}/memory.stat", inactive_file=7, total_active_file=files)
        self.write(f"{group}/memory.oom_control", under_oom=0, oom_kill=0)

    @staticmethod
    def file_system(used: int, limit: int) -> os.statvfs_result:
        """Return the size of a file system with blocks of 4 KiB."""
        free = (limit - used) // 4096
        return os.statvfs_result((4096, 4096, limit // 4096, free, free, 0, 0, 0, 0, 255))
