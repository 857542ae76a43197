import subprocess
import sys

import pytest

from din.backends import registry
from din.backends.options import check_backend_options
from din.backends.registry import BackendEntry, detect_backends, import_backend
from din.errors import UsageError


def test_backends_are_detected_without_importing_them():
    program = (
        "import sys; from din.backends.registry import detect_backends; print(detect_backends());"
        "print(sorted({'numpy', 'onnxruntime', 'onnx'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    found, imported = done.stdout.splitlines()
    assert "'onnxruntime': '1." in found
    assert imported == "[]"


def test_an_unknown_backend_is_named_with_the_known_ones():
    with pytest.raises(UsageError, match="tensorflow") as caught:
        import_backend("tensorflow")
    assert "onnxruntime" in caught.value.hint


def test_a_backend_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    entry = BackendEntry(
        module="din.backends.no_such_module",
        packages=("no-such-package",),
        imports="no_such_library",
    )
    monkeypatch.setitem(registry.BACKENDS, "ghost", entry)
    assert "ghost" not in detect_backends()
    with pytest.raises(UsageError, match="ghost") as caught:
        import_backend("ghost")
    assert "no-such-package" in caught.value.hint


def test_nobody_runs_a_slice_with_the_backend_of_probes():
    with pytest.raises(UsageError, match="looks at models and runs none"):
        check_backend_options("probe", {})
