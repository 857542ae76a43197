"""What tools and chips answer, written after their manuals and bug reports: none of this was
recorded on hardware of ours."""

from typing import Final

IPMI_TEMPERATURES: Final = """\
Inlet Temp       | 04h | ok  |  7.1 | 24 degrees C
CPU1 Temp        | 0Eh | ok  |  3.1 | 51 degrees C
CPU2 Temp        | 0Fh | ok  |  3.2 | 58 degrees C
CPU3 Temp        | 10h | ns  |  3.3 | No Reading
"""
IPMI_POWER: Final = """
    Instantaneous power reading:                   212 Watts
    Minimum during sampling period:                 61 Watts
    Maximum during sampling period:                430 Watts
    Power reading state is:                   activated
"""
PI_UNDER_VOLTAGE: Final = "throttled=0x50005\n"
PI_SOFT_LIMIT: Final = "throttled=0x80008\n"
PI_FINE: Final = "throttled=0x0\n"
NPU_USAGES: Final = """\
\tNPU ID                         : 0
\tChip Count                     : 1
\tDDR Capacity(MB)               : 21527
\tDDR Usage Rate(%)              : 50
\tDDR Bandwidth Usage Rate(%)    : 81
\tAicore Usage Rate(%)           : 93
\tChip ID                        : 0
"""
RKNPU_LOAD: Final = "NPU load:  Core0: 74%, Core1: 12%, Core2:  0%,\n"
