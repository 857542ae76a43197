import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from din.adapters.catalogue import before_specs
from din.adapters.context import ImageContext, decode_context, encode_context
from din.adapters.image import SCANS_MAX, ImageAdapter, open_picture
from din.adapters.registry import load_adapter
from din.domain.model import CONTEXT_TENSOR, AdapterSpec
from din.domain.tensor import TensorSpec
from din.errors import BadTensor, UsageError


def file_of(picture: Image.Image, kind: str = "PNG", **more: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **more)
    return buffer.getvalue()


def adapter(dtype: str = "FP32", **options: object) -> ImageAdapter:
    spec = AdapterSpec("image", options)
    layout = options.get("layout", "NCHW")
    shape = ("B", 3, "H", "W") if layout == "NCHW" else ("B", "H", "W", 3)
    made = load_adapter(spec, *before_specs(spec, (TensorSpec("x", dtype, shape),)))
    assert isinstance(made, ImageAdapter)
    return made


def run(made: ImageAdapter, data: bytes) -> tuple[np.ndarray, ImageContext]:
    element = np.empty(1, np.object_)
    element[0] = data
    found = made.run({"image": element}, (), {})
    return found["x"], decode_context(found[CONTEXT_TENSOR])


def solid(width: int, height: int, color: tuple[int, int, int] = (10, 20, 30)) -> bytes:
    return file_of(Image.new("RGB", (width, height), color))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_each_format_becomes_a_tensor(kind: str):
    data = file_of(Image.new("RGB", (64, 32), (200, 100, 50)), kind)
    tensor, context = run(adapter(size=[64, 32]), data)
    assert tensor.shape == (1, 3, 32, 64)
    assert tensor.dtype == np.float32
    assert np.allclose(tensor[0, :, 16, 32], [200, 100, 50], atol=4)
    assert (context.width, context.height) == (64, 32)


def test_layout_colour_and_dtype_are_the_models():
    tensor, _ = run(adapter("UINT8", size=[4, 2], layout="NHWC", color="BGR"), solid(4, 2))
    assert tensor.shape == (1, 2, 4, 3)
    assert tensor[0, 0, 0].tolist() == [30, 20, 10]
    assert tensor.dtype == np.uint8
    half, _ = run(adapter("FP16", size=[4, 2]), solid(4, 2))
    assert half.dtype == np.float16


def test_scale_mean_and_std_are_applied_per_channel():
    options = {"scale": 0.1, "mean": [1, 0, 0], "std": [1, 2, 3], "size": [4, 4]}
    tensor, _ = run(adapter(**options), solid(4, 4))
    assert np.allclose(tensor[0, :, 0, 0], [0, 1, 1])


def test_letterbox_keeps_the_ratio_and_tells_the_way_back():
    tensor, context = run(adapter(size=[100, 100], padding=7), solid(50, 20))
    assert context == ImageContext(width=50, height=20, scale_x=2.0, scale_y=2.0, pad_x=0, pad_y=30)
    assert tensor[0, :, 0, 0].tolist() == [7, 7, 7]
    assert tensor[0, :, 50, 50].tolist() == [10, 20, 30]


def test_stretch_fills_the_tensor():
    _, context = run(adapter(size=[100, 100], fit="stretch"), solid(50, 20))
    assert (context.scale_x, context.scale_y, context.pad_x, context.pad_y) == (2.0, 5.0, 0, 0)


def test_a_longest_side_is_kept_and_padded_to_multiples():
    tensor, context = run(adapter(max_side=100), solid(400, 200))
    assert tensor.shape == (1, 3, 64, 128)
    assert (context.scale_x, context.pad_x, context.pad_y) == (0.25, 14, 7)
    tensor, context = run(adapter(max_side=1000), solid(64, 32))
    assert tensor.shape == (1, 3, 32, 64)
    assert context.scale_x == 1.0


def test_the_way_of_holding_the_camera_is_undone():
    picture = Image.new("RGB", (40, 20))
    picture.putpixel((0, 0), (255, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned: to be rotated by 90 degrees clockwise
    tensor, context = run(adapter(size=[20, 40]), file_of(picture, "PNG", exif=exif))
    assert (context.width, context.height) == (20, 40)
    assert tensor[0, :, 0, 19].tolist() == [255, 0, 0]


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "LA", "I;16", "CMYK"])
def test_other_pixel_kinds_become_rgb(mode: str):
    kind = "JPEG" if mode == "CMYK" else "PNG"
    tensor, _ = run(adapter(size=[8, 8]), file_of(Image.new(mode, (8, 8)), kind))
    assert tensor.shape == (1, 3, 8, 8)


def test_grey_of_sixteen_bits_keeps_its_shades():
    shades = np.array([[0x0000, 0x1234, 0x8000, 0xFFFF]], np.uint16)
    tensor, _ = run(adapter(size=[4, 1]), file_of(Image.fromarray(shades)))
    assert tensor[0, 0, 0].tolist() == [0x00, 0x12, 0x80, 0xFF]


def with_scans(count: int) -> bytes:
    """A progressive JPEG of black whose last scan comes again and again."""
    data = file_of(Image.new("RGB", (64, 64)), "JPEG", progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * (count - data.count(b"\xff\xda")) + data[-2:]


def test_a_jpeg_of_endless_scans_is_refused_before_it_unpacks():
    assert run(adapter(size=[8, 8]), with_scans(SCANS_MAX))[0].shape == (1, 3, 8, 8)
    with pytest.raises(BadTensor, match=f"{SCANS_MAX + 1} scans"):
        run(adapter(size=[8, 8]), with_scans(SCANS_MAX + 1))


def test_a_target_is_written_to():
    made = adapter(size=[4, 2])
    target = np.zeros((1, 3, 2, 4), np.float32)
    element = np.empty(1, np.object_)
    element[0] = solid(4, 2)
    assert made.run({"image": element}, (), {"x": target})["x"] is target
    assert target[0, :, 0, 0].tolist() == [10, 20, 30]
    assert made.warm()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"fake", "not a JPEG, PNG or WebP"),
        (b"GIF89a" + bytes(50), "not a JPEG, PNG or WebP"),
        (file_of(Image.new("RGB", (64, 64)), "GIF"), "not a JPEG, PNG or WebP"),
        (solid(600, 600)[:-40], "broken or cut short"),
        (file_of(Image.effect_noise((200, 200), 90), "JPEG")[:5000], "broken or cut short"),
    ],
    ids=range(6),
)
def test_bytes_that_are_no_whole_picture_are_a_bad_tensor(data: bytes, words: str):
    with pytest.raises(BadTensor, match=words) as caught:
        run(adapter(size=[8, 8]), data)
    assert caught.value.hint


def test_a_decompression_bomb_is_refused_before_it_unpacks():
    bomb = file_of(Image.new("1", (20_000, 20_000)))
    assert len(bomb) < 100_000
    with pytest.raises(BadTensor, match="20000 x 20000 pixels, over the limit of 50000000"):
        run(adapter(size=[8, 8]), bomb)
    assert run(adapter(size=[8, 8], pixels_max=4096), solid(64, 64))[0].shape == (1, 3, 8, 8)
    with pytest.raises(BadTensor, match="over the limit of 4095"):
        run(adapter(size=[8, 8], pixels_max=4095), solid(64, 64))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["PNG", "JPEG", "WEBP"]), st.data())
def test_a_damaged_file_gives_a_picture_or_a_bad_tensor(kind: str, data: st.DataObject):
    whole = bytearray(file_of(Image.radial_gradient("L").resize((40, 40)), kind))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(1, len(whole)))
    try:
        assert open_picture(bytes(whole[:end]), 1_000_000).mode == "RGB"
    except BadTensor:
        return


@pytest.mark.parametrize("text", [b"", b"{", b"{}", b"[]", b" " * 5000, b'{"width": -1}'])
def test_a_context_that_nobody_wrote_is_a_bad_tensor(text: bytes):
    with pytest.raises(BadTensor, match="context"):
        decode_context(np.frombuffer(text, np.uint8))


def test_a_context_comes_back():
    context = ImageContext(width=5, height=6, scale_x=0.5, scale_y=0.25, pad_x=1, pad_y=2)
    assert decode_context(encode_context(context)) == context


def test_an_adapter_without_a_place_in_the_catalogue_is_refused():
    with pytest.raises(UsageError, match="'nobody'"):
        load_adapter(AdapterSpec("nobody"), (), ())
