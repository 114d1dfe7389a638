"""GGUF headers: as the library that writes them reads them, from their beginning alone, and never believed."""

from __future__ import annotations

import contextlib
import struct
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simserve.errors import ModelError
from simserve.memory.gguf import MAX_HEADER_BYTES, is_gguf, read_header
from simserve.memory.gguf_shape import GGML_TYPES, shape_of_gguf
from simserve.memory.shapes import load_shape
from tests.gguf_builders import ARRAY, LLAMA, STRING, TENSORS, UINT32, gguf, llama, text


@pytest.fixture
def write(tmp_path):
    def to_file(content: bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return to_file


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("order", ["<", ">"])
def test_dimensions_are_read_in_both_byte_orders_and_versions(write, version, order):
    """What the header says, with head_dim = embedding length / heads where there is no key length."""
    shape = shape_of_gguf(write(gguf(LLAMA, version=version, order=order)))
    assert (shape.num_layers, shape.num_attention_heads, shape.num_kv_heads, shape.head_dim) == (4, 8, 2, 32)
    assert shape.max_context == 4_096
    assert shape.num_parameters == 256 * 1_000 + 256 * 256


def test_stored_bytes_follow_each_tensor_s_type(write):
    """Q8_0 keeps 32 weights in 34 bytes, Q4_K 256 in 144."""
    shape = shape_of_gguf(write(gguf(LLAMA)))
    assert shape.stored_bytes == 256 * 1_000 * 34 // 32 + 256 * 256 * 144 // 256
    assert shape.bytes_in(None) == shape.stored_bytes
    assert shape.stored_as == "mostly Q8_0"


def test_types_are_those_of_ggml():
    """Number, name and block of every type, against the package that llama.cpp publishes."""
    library = pytest.importorskip("gguf", reason="the package gguf, llama.cpp's own")
    known = {int(kind): (kind.name, *library.GGML_QUANT_SIZES[kind]) for kind in library.GGMLQuantizationType}
    assert known == GGML_TYPES


def test_files_of_llama_cpp_s_own_writer_read_the_same(tmp_path):
    """A file that llama.cpp's package wrote: same dimensions, same bytes of tensors as it reports itself."""
    library = pytest.importorskip("gguf", reason="the package gguf, llama.cpp's own")
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "written.gguf"
    writer = library.GGUFWriter(path, "qwen2")
    writer.add_block_count(24)
    writer.add_embedding_length(896)
    writer.add_head_count(14)
    writer.add_head_count_kv(2)
    writer.add_token_list([f"token {i}" for i in range(5_000)])
    writer.add_token_scores([0.0] * 5_000)
    writer.add_tensor("token_embd.weight", numpy.zeros((300, 896), dtype=numpy.float16))
    packed = library.quants.quantize(numpy.ones((64, 896), dtype=numpy.float32), library.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.ffn_up.weight", packed, raw_dtype=library.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensors = library.GGUFReader(path).tensors
    shape = load_shape(str(path))
    assert (shape.num_layers, shape.num_kv_heads, shape.head_dim) == (24, 2, 64)
    assert shape.num_parameters == sum(int(t.n_elements) for t in tensors)
    assert shape.stored_bytes == sum(int(t.n_bytes) for t in tensors)


def test_the_beginning_of_a_file_is_enough(write):
    """Data after the header changes nothing; without the last byte of the header, one sentence says what is missing."""
    header = gguf(LLAMA)
    assert read_header(write(header)) == read_header(write(header + bytes(10_000)))
    with pytest.raises(ModelError, match="needs 8 bytes more and the file has 7; it is damaged, or give more"):
        read_header(write(header[:-1]))


def test_a_vocabulary_of_152_000_words_takes_no_time(write):
    """Its words are passed over: well under two seconds of CPU, where llama.cpp's package takes six."""
    words = b"".join(text(f"word {i}") for i in range(152_000))
    vocabulary = text("tokenizer.ggml.tokens") + struct.pack("<IIQ", ARRAY, STRING, 152_000) + words
    content = gguf({**LLAMA, "x": 1})
    keys = struct.pack("<Q", len(LLAMA) + 2)
    first_key = 4 + 4 + 8 + 8
    path = write(content[:16] + keys + vocabulary + content[first_key:])
    began = time.process_time()
    assert read_header(path).metadata["llama.block_count"] == 4
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"general__architecture": ...}, "general.architecture: is missing"),
        ({"llama__block_count": ...}, "llama.block_count: is missing"),
        ({"llama__block_count": 0}, "llama.block_count: must be a whole number from 1"),
        ({"llama__block_count": "four"}, "llama.block_count: must be a whole number from 1 to 16777216 (got 'four')"),
        ({"llama__attention__head_count": ...}, "llama.attention.head_count: is missing"),
        ({"llama__attention__head_count_kv": 3}, "must divide head_count 8 (got 3)"),
        ({"llama__attention__head_count_kv": [2, 2, 4, 2]}, "must be the same in every layer (got 2, 4)"),
        ({"llama__attention__head_count_kv": []}, "must be the same in every layer (got no number)"),
        ({"llama__attention__head_count": 7, "llama__attention__head_count_kv": 7}, "must be divisible by 7 heads"),
        ({"llama__attention__key_length": 64, "llama__attention__value_length": 32}, "must be key_length 64 (got 32)"),
        ({"llama__attention__kv_lora_rank": 512}, "only models that keep keys and values of every head"),
        ({"llama__embedding_length": ...}, "llama.embedding_length: is missing"),
    ],
)
def test_a_header_without_whole_dimensions_is_one_sentence(write, changes, said):
    """It names the file, the key and the rule."""
    path = write(gguf(llama(**changes)))
    with pytest.raises(ModelError) as error:
        shape_of_gguf(path)
    assert str(error.value).startswith(f"{path}: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_one_number_for_each_layer_is_a_number_where_they_agree(write):
    """Some converters write a list even so."""
    assert shape_of_gguf(write(gguf(llama(llama__attention__head_count_kv=[2] * 4)))).num_kv_heads == 2


def test_keys_of_their_own_length_and_windows_are_seen(write):
    """``key_length`` goes before the quotient; a sliding window is told, as it is counted in full."""
    shape = shape_of_gguf(write(gguf(llama(llama__attention__key_length=64, llama__attention__sliding_window=1_024))))
    assert shape.head_dim == 64
    assert "sliding window of 1,024 tokens" in shape.notes[0]


def test_frequency_tables_are_stored_but_no_parameters(write):
    """``rope_freqs`` takes its bytes and counts for nothing else."""
    with_table = shape_of_gguf(write(gguf(LLAMA, [*TENSORS, ("rope_freqs.weight", (16,), 0)])))
    without = shape_of_gguf(write(gguf(LLAMA)))
    assert with_table.num_parameters == without.num_parameters
    assert with_table.stored_bytes == without.stored_bytes + 64


def test_a_type_that_nobody_knows_yet_leaves_bytes_open(write):
    """Dimensions still serve; asked for stored weights, one sentence names the way out."""
    shape = shape_of_gguf(write(gguf(LLAMA, [("token_embd.weight", (256, 10), 99)])))
    assert shape.stored_bytes is None
    with pytest.raises(ModelError, match="no stored weights to count; name a scheme"):
        shape.bytes_in(None)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a GGUF file"),
        (b"GGU", "is not a GGUF file"),
        (b"GGML" + bytes(100), "is not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version: must be 2 or 3 (got 1)"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 2**63), "the header needs"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**64 - 1) + bytes(9), "the header needs 1844674"),
        (gguf({})[:16] + struct.pack("<Q", 1) + text("k") + struct.pack("<I", 77) + bytes(99), "from 0 to 12 (got 77)"),
        (
            gguf({})[:16] + struct.pack("<Q", 1) + text("k") + struct.pack("<IIQ", ARRAY, STRING, 2**62) + bytes(99),
            "the header needs",
        ),
        (
            gguf({})[:16] + struct.pack("<Q", 1) + text("k") + struct.pack("<IIQ", ARRAY, UINT32, 2**62) + bytes(99),
            "the header needs",
        ),
        (gguf({"k": [[[[[[1]]]]]]}), "arrays are nested more than 4 deep"),
        (gguf({"general.architecture": "llama"}, [("t", (1,) * 5, 0)]), "a tensor has 5 dimensions"),
    ],
)
def test_lengths_that_lie_are_refused_at_once(write, content, said):
    """Whatever a length claims, nothing is taken that is not there: one sentence, no memory, no time."""
    began = time.process_time()
    with pytest.raises(ModelError) as error:
        read_header(write(content))
    assert said in str(error.value)
    assert time.process_time() - began < 1


def test_a_header_without_end_is_given_up(tmp_path):
    """A sparse file of a terabyte whose one string claims half of it is refused at the limit of a header."""
    path = tmp_path / "long.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IQ", STRING, 2**39))
        file.truncate(2**40)
    with pytest.raises(ModelError, match=f"longer than {MAX_HEADER_BYTES} bytes"):
        read_header(path)


def test_impossible_tensors_are_refused(write):
    """Dimensions whose product no memory holds, or none at all."""
    for tensors in ([("t", (2**60, 2**60), 0)], [("t", (0, 5), 0)], []):
        with pytest.raises(ModelError, match="must hold from 1 to 10¹⁶ parameters"):
            shape_of_gguf(write(gguf(LLAMA, tensors)))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_a_shape_or_one_sentence(write, data):
    """Bytes changed or cut anywhere: never another error, never long."""
    content = bytearray(gguf(LLAMA))
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    with contextlib.suppress(ModelError):
        shape_of_gguf(write(bytes(content[:cut])))


def test_gguf_files_are_known_by_their_beginning(write, tmp_path):
    """By content or by name; a folder or nothing is none."""
    assert is_gguf(write(gguf(LLAMA), "weights.bin"))
    assert load_shape(str(write(gguf(LLAMA), "weights.bin"))).num_layers == 4
    assert is_gguf(write(b"{}", "x.gguf"))
    assert not is_gguf(write(b"{}", "config.json"))
    assert not is_gguf(tmp_path)
    with pytest.raises(ModelError, match="cannot be read"):
        load_shape(str(tmp_path / "nothing.gguf"))


def _part(number, count=3):
    return f"big-{number:05}-of-{count:05}.gguf"


def test_a_split_model_is_all_its_parts(write):
    """llama-gguf-split: the first part has the metadata, each its own tensors; the first names the whole."""
    whole = shape_of_gguf(write(gguf(LLAMA, [*TENSORS, ("output.weight", (256, 500), 8)])))
    first = write(gguf(llama(split__count=3, split__no=0), TENSORS[:1]), _part(1))
    write(gguf({"split.count": 3, "split.no": 1}, TENSORS[1:]), _part(2))
    write(gguf({"split.count": 3, "split.no": 2}, [("output.weight", (256, 500), 8)]), _part(3))
    split = load_shape(str(first))
    assert (split.num_parameters, split.stored_bytes) == (whole.num_parameters, whole.stored_bytes)
    assert split.name == "big"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (_part(1), "00002-of-00003.gguf: cannot be read"),
        (_part(2), "is not the first part of the model; give big-00001-of-"),
        (_part(1, 4), "must be named NAME-00001-of-00003.gguf"),
        ("big.gguf", "must be named NAME-00001-of-00003.gguf"),
    ],
)
def test_a_part_without_the_others_is_one_sentence(write, name, said):
    """It names the part that is missing, or how parts are found."""
    with pytest.raises(ModelError, match=said):
        shape_of_gguf(write(gguf(llama(split__count=3)), name))


def test_names_that_break_lines_are_quoted(write):
    """A message and a title stay on one line, whatever a file is called."""
    with pytest.raises(ModelError) as error:
        load_shape(str(write(b"GGUF", "a\nb.gguf")))
    assert "\n" not in str(error.value)
    assert shape_of_gguf(write(gguf(LLAMA), "a\nb.gguf")).name == "'a\\nb'"
