"""Machines with engines of makers, recorded after the makers' documentation: which module, library
and device node their installation leaves. None of them was at hand."""

from __future__ import annotations

from fnmatch import fnmatch

from msgspec import Struct

ABSENT = "{}: cannot open shared object file: No such file or directory"


class Recorded(Struct, frozen=True):
    """Implements makers.Machine."""

    modules: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    libraries: dict[str, str] = {}
    """By name: why the loader does not open it; empty = it does."""
    devices: tuple[str, ...] = ()

    def has_module(self, name: str) -> bool:
        return name in self.modules

    def version(self, packages: tuple[str, ...]) -> str:
        return next((self.versions[each] for each in packages if each in self.versions), "")

    def shared_object_trouble(self, name: str) -> str:
        return self.libraries.get(name, ABSENT.format(name))

    def nodes(self, patterns: tuple[str, ...]) -> tuple[str, ...]:
        paths = [f"/dev/{pattern}" for pattern in patterns]
        return tuple(each for each in self.devices if any(fnmatch(each, path) for path in paths))


BARE = Recorded()
HAILO_8 = Recorded(
    modules=("hailo_platform",),
    versions={"hailort": "4.20.0"},
    libraries={"libhailort.so": ""},
    devices=("/dev/hailo0",),
)
HAILO_WITHOUT_DRIVER = Recorded(
    modules=("hailo_platform",), versions={"hailort": "4.20.0"}, libraries={"libhailort.so": ""}
)
JETSON_WITHOUT_CUDNN = Recorded(
    modules=("tensorrt",),
    versions={"tensorrt": "10.3.0"},
    libraries={"libnvinfer.so.10": ABSENT.format("libcudnn.so.9")},
    devices=("/dev/nvidia0",),
)
ATLAS_WITHOUT_SET_ENV = Recorded(devices=("/dev/davinci0", "/dev/davinci_manager"))
CORAL_PCIE = Recorded(
    modules=("ai_edge_litert",), libraries={"libedgetpu.so.1": ""}, devices=("/dev/apex_0",)
)
