"""What a container may do, as its config.json says it."""

from __future__ import annotations

from typing import Any

import pytest

from din.config_forms import ContainerSetting
from din.errors import UsageError
from din.runner.bundle import Device, Host, bundle_of, seccomp_of
from din.runner.image import RunConfig

ROOT = Host("x86_64", 0, 0, has_cgroups=True)
USER = Host("x86_64", 1000, 1001, has_cgroups=False)
IMAGE = RunConfig(entrypoint=["/serve"], cmd=["--all"], env=["A=1", "B=2"], user="triton")
GPU = Device("/dev/gpu0", "c", 195, 3, 0o660, 0, 44)


def made(host: Host = ROOT, image: RunConfig = IMAGE, **setting: Any) -> dict[str, Any]:
    own = ContainerSetting(image="/image", **setting)
    return bundle_of(own, image, "/root", "din-1", host, [GPU])


def test_a_container_has_namespaces_a_read_only_root_and_no_powers() -> None:
    found = made()
    kinds = {each["type"] for each in found["linux"]["namespaces"]}
    assert kinds == {"pid", "mount", "ipc", "uts", "network"}
    assert found["root"] == {"path": "/root", "readonly": True}
    process = found["process"]
    assert process["noNewPrivileges"] is True
    assert set(map(tuple, process["capabilities"].values())) == {()}
    assert process["user"] == {"uid": 65534, "gid": 65534, "additionalGids": [44]}


def test_the_settings_go_before_the_image() -> None:
    found = made(command=("/other",), environment={"B": "3"}, user="7:8")["process"]
    assert found["args"] == ["/other"]
    assert {"A=1", "B=3"} < set(found["env"])
    assert (found["user"]["uid"], found["user"]["gid"]) == (7, 8)
    plain = made(image=RunConfig(entrypoint=["/serve"], cmd=["--all"], user="9"))["process"]
    assert plain["args"] == ["/serve", "--all"]
    assert (plain["user"]["uid"], plain["user"]["gid"]) == (9, 9)


def test_what_is_mounted_of_this_machine_is_read_only() -> None:
    found = made(mounts={"/srv/models": "/models"})["mounts"]
    (own,) = [each for each in found if each["type"] == "bind"]
    assert (own["source"], own["destination"]) == ("/srv/models", "/models")
    assert {"ro", "nosuid", "nodev"} < set(own["options"])


def test_memory_devices_and_processes_are_limited() -> None:
    resources = made(memory_mib=100)["linux"]["resources"]
    assert resources["memory"]["limit"] == 100 * 1024 * 1024
    assert resources["devices"] == [
        {"allow": False, "access": "rwm"},
        {"allow": True, "type": "c", "major": 195, "minor": 3, "access": "rw"},
    ]


def test_an_ordinary_users_container_has_its_own_users_and_a_limit_for_each_process() -> None:
    found = made(USER, memory_mib=100)
    assert {"type": "user"} in found["linux"]["namespaces"]
    assert found["linux"]["uidMappings"] == [{"containerID": 0, "hostID": 1000, "size": 1}]
    assert "resources" not in found["linux"]
    limits = {each["type"]: each["hard"] for each in found["process"]["rlimits"]}
    assert limits["RLIMIT_DATA"] == 100 * 1024 * 1024
    (device,) = [each for each in found["mounts"] if each["destination"] == "/dev/gpu0"]
    assert "rw" in device["options"]


def test_new_namespaces_and_calls_that_broke_kernels_are_refused() -> None:
    calls = seccomp_of("x86_64")["syscalls"]
    refused = {name for each in calls if "args" not in each for name in each["names"]}
    assert {"mount", "unshare", "setns", "ptrace", "bpf", "io_uring_setup", "clone3"} < refused
    flags = {each["args"][0]["value"] for each in calls if "args" in each}
    assert {0x10000000, 0x40000000} < flags
    assert all(each["args"][0]["value"] == each["args"][0]["valueTwo"] for each in calls
               if "args" in each)  # fmt: skip


def test_an_image_that_says_no_program_needs_a_command() -> None:
    with pytest.raises(UsageError, match="nothing says which program"):
        made(image=RunConfig())
