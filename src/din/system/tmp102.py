"""A TMP102 (or LM75, TMP75, TMP112: the same register) on an I2C bus, without a kernel driver.

    tmp102:1          bus 1, address 0x48
    tmp102:1:0x4a     another address

For boards whose own thermal file is slow or wrong. Where a kernel driver has the chip, the kernel
says so and its hwmon file is the one to name: the driver is never pushed aside.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from pathlib import Path
from typing import Final

from din.system.polling import Source
from din.system.readings import in_range
from din.wire.heartbeat import TEMPERATURE_C_RANGE

I2C_SLAVE: Final = 0x0703
"""A bare number, the same on every machine: the address is the argument, not a pointer."""
ADDRESS: Final = 0x48
ADDRESSES: Final = range(0x03, 0x78)
DEGREES_PER_STEP: Final = 0.0625
_WORDS: Final = re.compile(r"tmp102:(\d{1,3})(?::(0x[0-9a-fA-F]{1,2}|\d{1,3}))?\Z")


def tmp102_place(words: str) -> tuple[int, int]:
    """Bus and address. Raises ValueError."""
    found = _WORDS.match(words)
    address = int(found[2] or str(ADDRESS), 0) if found else -1
    if found is None or address not in ADDRESSES:
        raise ValueError(f"{words!r} is not tmp102:BUS[:ADDRESS] with an address 0x03 to 0x77")
    return int(found[1]), address


def tmp102_source(words: str, root: Path = Path("/")) -> Source[float]:
    """The chip, spoken to once. Raises ValueError for bad words, OSError when it is not there."""
    bus, address = tmp102_place(words)
    path = root / f"dev/i2c-{bus}"
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, I2C_SLAVE, address)
        read_tmp102(descriptor)
    except OSError as error:
        os.close(descriptor)
        if error.errno == errno.EBUSY:
            hint = f"a kernel driver has 0x{address:02x} on {path}: name its hwmon file instead"
            raise OSError(errno.EBUSY, hint) from error
        raise
    return Source(f"TMP102 at 0x{address:02x} on {path}", lambda: read_tmp102(descriptor))


def read_tmp102(descriptor: int) -> float | None:
    """Degrees Celsius; None for what is no temperature. Raises OSError when it does not answer."""
    os.write(descriptor, b"\0")
    return tmp102_degrees(os.read(descriptor, 2))


def tmp102_degrees(register: bytes) -> float | None:
    """Of the two bytes of register 0: 12 bits with sign, or 13 where the last bit says so."""
    if len(register) != 2 or register == b"\xff\xff":  # an empty bus reads as ones
        return None
    value = int.from_bytes(register, "big", signed=True)
    steps = value >> 3 if register[1] & 1 else value >> 4
    return in_range(steps * DEGREES_PER_STEP, *TEMPERATURE_C_RANGE)
