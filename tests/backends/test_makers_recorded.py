"""Engines of makers: what is told of recorded machines, and of this one."""

from __future__ import annotations

import asyncio

import pytest
from recorded_makers import (
    ATLAS_WITHOUT_SET_ENV,
    BARE,
    CORAL_PCIE,
    HAILO_8,
    HAILO_WITHOUT_DRIVER,
    JETSON_WITHOUT_CUDNN,
    Recorded,
)

from din.backends.asking import ask_engine, offered
from din.backends.makers import ALL, facts_of
from din.backends.registry import BACKENDS, MAKERS


@pytest.mark.parametrize("name", MAKERS)
def test_of_a_bare_machine_each_part_is_told_that_is_missing_and_how_to_get_it(name: str) -> None:
    facts, maker = facts_of(name, BARE), ALL[name]
    assert f"Python module {maker.module}" in facts.trouble
    for library in maker.libraries:
        assert f"library {library}" in facts.trouble
    assert ("device /dev/" in facts.trouble) == bool(maker.devices)
    assert "DIN has no loader for it" in facts.trouble
    assert facts.hint.startswith(f"it takes {maker.takes}; get it by:")
    assert not facts.trouble.endswith("…")
    assert not facts.hint.endswith("…")


@pytest.mark.parametrize(
    ("name", "machine", "missing", "version"),
    [
        ("hailo", HAILO_8, "all of it is here.", "4.20.0"),
        ("hailo", HAILO_WITHOUT_DRIVER, "missing: device /dev/hailo[0-9]*. ", "4.20.0"),
        ("coral", CORAL_PCIE, "all of it is here.", ""),
        (
            "cann",
            ATLAS_WITHOUT_SET_ENV,
            "missing: Python module acl; library libascendcl.so. ",
            "",
        ),
    ],
)
def test_of_a_recorded_machine_only_what_is_missing_is_told(
    name: str, machine: Recorded, missing: str, version: str
) -> None:
    facts = facts_of(name, machine)
    assert facts.trouble.startswith(missing)
    assert facts.version == version


def test_a_library_that_lacks_another_is_told_with_the_other_one() -> None:
    facts = facts_of("tensorrt", JETSON_WITHOUT_CUDNN)
    assert "library libnvinfer.so.10 (libcudnn.so.9: cannot open" in facts.trouble
    assert facts.devices == ("/dev/nvidia0",)


def test_no_engine_of_a_maker_is_ever_offered() -> None:
    assert not set(MAKERS) & set(BACKENDS)
    facts = {"hailo": facts_of("hailo", HAILO_8)}
    assert offered(facts) == ()


def test_this_machine_is_asked_in_a_process_of_its_own() -> None:
    facts = asyncio.run(ask_engine("hailo"))
    assert not facts.is_usable
    assert "DIN has no loader for it" in facts.trouble
