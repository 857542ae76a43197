"""What a worker may ask of the kernel: computing, its own memory and threads, the sockets it has.

It opens nothing: files, memory and sockets come to it as descriptors. It starts no process, maps no
code, and sends signals to itself only.
"""

from __future__ import annotations

from typing import Final

from din.sandbox.bpf import Argument, Rules

_FREE: Final = (
    *("read", "write", "readv", "writev", "pread64", "lseek", "close", "close_range", "fstat"),
    *("poll", "ppoll", "select", "pselect6"),
    *("recvfrom", "recvmsg", "sendto", "sendmsg", "shutdown", "getsockopt", "setsockopt"),
    "getsockname",
    *("brk", "munmap", "mremap", "madvise", "mincore", "membarrier"),
    *("futex", "futex_waitv", "set_robust_list", "get_robust_list", "rseq", "set_tid_address"),
    *("exit", "exit_group", "sched_yield", "sched_getaffinity", "gettid", "getpid", "getppid"),
    *("rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall"),
    *("clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "gettimeofday", "time"),
    *("timerfd_create", "timerfd_settime"),
    *("getrandom", "uname", "sysinfo", "getrusage", "getuid", "geteuid", "getgid", "getegid"),
    "getcpu",
)
_WRITING: Final = (
    *("openat", "statx", "stat", "lstat", "getdents64", "fsync", "ftruncate"),
    *("mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "access", "faccessat", "faccessat2"),
)
"""For a process with a folder of its own."""
ABSENT: Final = ("clone3",)
"""Its flags lie in memory, where no filter sees them; the C library takes `clone` then."""

_WHOLE: Final = 0xFFFFFFFFFFFFFFFF
_PROT_EXEC: Final = 4
_CLONE_THREAD: Final = 0x00010000
_CLONE_NEW: Final = 0x7E020080
"""Namespaces of every kind: CLONE_NEWNS, -CGROUP, -UTS, -IPC, -USER, -PID, -NET, -TIME."""
_AT_EMPTY_PATH: Final = 0x1000
_FCNTL: Final = (1, 2, 3, 4, 1030, 1034)
"""F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC, F_GET_SEALS."""
_IOCTL: Final = (0x5421, 0x5450, 0x5451)
"""FIONBIO, FIONCLEX, FIOCLEX."""
_AF_INET: Final = (2, 10)
"""AF_INET, AF_INET6."""
_SOCK_STREAM, _SOCK_KIND = 1, 0xF
_PRCTL: Final = (3, 15, 16, 0x53564D41)
"""PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_SET_VMA."""


def worker_rules(
    pid: int,
    *,
    has_folder: bool = False,
    has_threads: bool = True,
    makes_code: bool = False,
    has_network: bool = False,
) -> Rules:
    """For the process `pid`. `has_folder`: it may open files, where a namespace or Landlock leaves
    it nothing but a folder of its own. `has_threads`: it may start some. `makes_code`: memory that
    it wrote may be run; files still may not, since none can be mapped so. `has_network`: it may
    connect by TCP; to which port is Landlock's part."""
    free: dict[str, tuple[Argument, ...]] = dict.fromkeys(_FREE, ())
    if has_folder:
        free |= dict.fromkeys((*_WRITING, "newfstatat"), ())
    else:
        # `fstat` of some C libraries. A path may stand beside the flag, where no filter sees it: at
        # level 1 a worker can ask whether a file is there, and its size. It cannot open it.
        free["newfstatat"] = (Argument(3, (_AT_EMPTY_PATH,), _AT_EMPTY_PATH),)
    if has_threads:
        free["clone"] = (Argument(0, (_CLONE_THREAD,), _CLONE_THREAD | _CLONE_NEW),)
    if has_network:
        free["socket"] = (Argument(0, _AF_INET), Argument(1, (_SOCK_STREAM,), _SOCK_KIND))
        free["connect"] = ()
    return free | {
        "mmap": (Argument(2, (0,), _PROT_EXEC),),
        "mprotect": () if makes_code else (Argument(2, (0,), _PROT_EXEC),),
        "tgkill": (Argument(0, (pid,)),),
        "fcntl": (Argument(1, _FCNTL),),
        "ioctl": (Argument(1, _IOCTL),),
        "prctl": (Argument(0, _PRCTL),),
        "prlimit64": (Argument(0, (0, pid)), Argument(2, (0,), _WHOLE)),
    }
