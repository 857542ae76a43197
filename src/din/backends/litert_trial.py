"""One small .tflite file with a known answer; see `trial`."""

from __future__ import annotations

import base64
from typing import Final

import numpy as np

from din.backends.contract import Array

MODEL: Final = base64.b85decode(
    "7ytkOR7OlQ000gE6aWwa3;+lK000C44gdfE5C8xGYybcN>;V7(0{{R30{{R3SO5S3Bme*a1ONa4>i_@$1ONa42mk;80000!"
    "0002L000I62mk~C1^@s61ONa4AOHXW004kL0002M0000#004kK0000#004kL004l$0000$1ONm81ONa40RR915C8xG3;+}W"
    "5C9AS2mk~C3;+NC5C8xGU;qFBWB>pFXaE2J0RR916aWAK000gE761SM5C9AS3jhQF4gdfE7ytkO000087ytkO8~^|S000I6"
    "2ml8F1^@s6000010RR910{{R30{{R3000000RR910ssI20RR910{{R30RR91000001ONa4zyJUMd;kCdJOBUy1ONa4X8-^H"
    "000013;+NC6aWAK7ytkO0ssI20RR910ssI20RR91c>n+a0ssI20RR910ssI2+W-Im000013;+NC0ssI23;+NC0RR91VgLXD"
    "0RR910ssI2000&M6aWwa000aC2mk;800000000L7761SM000013;+NC0RR913;+NC0RR91cK`qY0ssI20ssI21ONa4000&M"
    "6aWwa000003;+NC000002ml8F761SM000013;+NC6aWAK7ytkO0ssI20RR911ONa40RR91cmMzZ0ssI20RR911ONa40RR91"
    "5C8xG3;+xO3jhEB000C43;+NC2><{900009"
)
"""x [1,4] -> fully connected with a ReLU -> y [1,2]; 560 bytes."""
ANSWER: Final = (3.1875, 0.0)


def question() -> Array:
    """The input `x`."""
    return np.array([[1, -0.5, 2, 0.25]], np.float32)
