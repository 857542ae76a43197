"""One small model with a known answer, for an engine that was installed on a machine nobody tried.

A build for another processor ends the process here; kernels that compute wrongly are found.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Final

import numpy as np

from din.backends.contract import Array, Backend, EngineSession
from din.errors import ExecutionFailed

MODEL: Final = base64.b85decode(
    "2nagK0}4V40eA`lcM1Vw5&>fx1Y>V*b|M5rZ*F!f6$%V%WpZw1Y+rL|VQ^(Y13&|y0S77(3IuRrWOG0PKmkAjKmniu2"
    "MQ7j0b>#YavB73Wo&gK1X5*ebqXH}0df)na2f<~Z*OcO5l3uqVqt7Sc4cy5XJt@tZ)^$`3IT8u0cIKmW^7?}A_qonV"
    "RUq5ZVDI*0cHvTX9@vi5&?M{1ZQP!Z6X9mWo>N|1$1(0VQea(0SE#J0tf>L0}ug10e4D}0RRBNz5oD#z5oCKz5oCK0"
    "0000J^%oKJ^%o~J^%o~z5oD#z5oCKz5oCK00000J^%oKJ^%o~J^%o~z5oD#z5oCKz5oCK00000J^%oKJ^%o~J^%o~z"
    "5oD#z5oCKz5oCK00000J^%oKJ^%o~J^%o~z5oD#z5oCKz5oCK00000J^%oKJ^%o~J^%o~zA6z20uTX00b)uB0000#0"
    "04l#DjNs_2m%lRLIGz=5C8yxz5oCK0001hJ^%m!KPnLj0uTX00c1)D0000!004kLS{n)hcoG&06bJzl5DEea0SW>L0"
    "tx~M1PTHO1Y#2k0eKP*3JeGV5(o+c2muNL2m(R`3IGrd"
)
"""x [1,2,4,4] -> Conv -> Relu -> GlobalAveragePool -> Flatten -> Gemm -> y [1,2]; 468 bytes,
opset 13. Every number in it is a small fraction of a power of two, so the answer is exact."""
ANSWER: Final = (33 / 512, 1219 / 1024)
TOLERANCE: Final = 1e-4
"""Of the answer; what is off by more was computed with less than FP32."""


def question() -> Array:
    """The input `x`."""
    return ((np.arange(32) % 11 - 5) / 4).reshape(1, 2, 4, 4).astype(np.float32)


def try_engine(backend: Backend) -> None:
    """Load, run, unload. Raises ExecutionFailed for a wrong answer, and what the engine raises."""
    check_answer(backend.load(MODEL, {"threads": "1"}, {}), question(), ANSWER)


def check_answer(session: EngineSession, asked: Array, answer: Sequence[float]) -> None:
    """Run a small network with an input `x` and an output `y`, and unload it. Raises as
    `try_engine`."""
    found = session.run({"x": asked}, ("y",), {})["y"].reshape(-1).tolist()
    session.unload()
    pairs = zip(found, answer, strict=False)
    if len(found) != len(answer) or any(abs(a - b) > TOLERANCE for a, b in pairs):
        raise ExecutionFailed(
            f"it computes wrongly on this machine: a small network gives {found} instead of "
            f"{list(answer)}",
            hint="install another version of it",
        )
