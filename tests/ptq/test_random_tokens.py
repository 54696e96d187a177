# SPDX-License-Identifier: Apache-2.0
"""Random token ids as samples: `data="random-tokens"`."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import anybit
from anybit import DataError, OptionError
from anybit.inspection import report_quantization
from anybit.ptq.calibration.random_tokens import generate_random_tokens
from anybit.ptq.config import RandomTokensConfig

VOCABULARY, POSITIONS, WIDTH = 500, 40, 16
# A channel of the embeddings has outliers, as those of transformers do.
MODEL = """<ir_version: 9, opset_import: ["": 20]>
g (int64[n,t] ids, int32[n,t] position, int64[n,t] kind, int64[n,t] mask)
    => (float[n,t,8] y) {
    word = Gather(words, ids)
    wide = Cast<to = 7>(position)
    place = Gather(places, wide)
    sentence = Gather(kinds, kind)
    sum = Add(word, place)
    all = Add(sum, sentence)
    axes = Constant<value_ints = [-1]>()
    column = Unsqueeze(mask, axes)
    weight = Cast<to = 1>(column)
    masked = Mul(all, weight)
    scaled = Mul(masked, gain)
    hidden = MatMul(scaled, w1)
    bounded = Tanh(hidden)
    y = MatMul(bounded, w2)}"""
TOKENS = ("ids", "position", "kind", "mask")


def make_model(text=MODEL):
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    gain = np.ones(WIDTH)
    gain[3] = 50
    arrays = {
        "words": random.normal(size=(VOCABULARY, WIDTH)),
        "places": random.normal(size=(POSITIONS, WIDTH)),
        "kinds": random.normal(size=(2, WIDTH)),
        "gain": gain,
        "w1": random.normal(size=(WIDTH, WIDTH)) / gain[:, None],
        "w2": random.normal(size=(WIDTH, 8)),
    }
    model.graph.initializer.extend(
        numpy_helper.from_array(array.astype(np.float32), name)
        for name, array in arrays.items()
        if name in text
    )
    return model


def generate(model, config=None):
    return generate_random_tokens(
        ir.from_proto(model), "the model", config or RandomTokensConfig(samples=16, least_batches=2)
    )


def measure_sqnr(quantized):
    random = np.random.default_rng(9)
    feeds = {
        "ids": random.integers(0, VOCABULARY, (16, 24)),
        "position": np.tile(np.arange(24, dtype=np.int32), (16, 1)),
        "kind": np.zeros((16, 24), np.int64),
        "mask": np.ones((16, 24), np.int64),
    }
    expected = anybit.load(make_model()).run(feeds)["y"]
    y = anybit.load(quantized.model).run(feeds)["y"]
    return 10 * np.log10(np.square(expected).sum() / np.square(expected - y).sum())


def test_samples_are_ids_positions_kinds_and_masks():
    batches = generate(make_model())
    assert len(batches) == 2
    for batch in batches:
        assert {name: array.shape for name, array in batch.items()} == dict.fromkeys(
            TOKENS, (8, 32)
        )
        assert batch["ids"].min() >= 0
        assert batch["ids"].max() < VOCABULARY
        np.testing.assert_array_equal(batch["position"], np.tile(np.arange(32), (8, 1)))
        assert batch["position"].dtype == np.int32
        assert not batch["kind"].any()
        assert batch["mask"].all()
    assert len(np.unique(np.concatenate([batch["ids"] for batch in batches]))) > 200


def test_samples_have_fixed_sizes():
    text = MODEL.replace("[n,t]", "[1,50]").replace("[n,t,8]", "[1,50,8]")
    batches = generate(make_model(text))
    assert len(batches) == 16
    np.testing.assert_array_equal(batches[0]["position"], np.arange(50)[None] % POSITIONS)


def test_samples_are_the_same_in_each_call():
    for first, second in zip(generate(make_model()), generate(make_model()), strict=True):
        for name in TOKENS:
            np.testing.assert_array_equal(first[name], second[name])


@pytest.mark.parametrize(
    "options", [{"activations": "int8 dynamic"}, {"weights": "int4"}], ids=["dynamic", "weights"]
)
def test_error_is_smaller_than_without_data(options):
    plain = anybit.quantize(make_model(), **options)
    tuned = anybit.quantize(make_model(), "random-tokens", **options)
    assert measure_sqnr(tuned) > measure_sqnr(plain) + 0.5
    assert any("usually lowers the error" in remark for remark in plain.remarks)
    assert any("random token ids" in remark for remark in tuned.remarks)
    assert plain.verdict is None
    assert tuned.verdict.samples > 10


def test_report_runs_on_random_tokens():
    result = anybit.quantize(make_model(), "random-tokens", activations="int8 dynamic")
    report = report_quantization(result, "random-tokens")
    assert report.data is not None
    assert report.data.samples > 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activations": "uint8"}, "activations need calibration data"),
        ({"activations": "auto"}, "needs data"),
        ({"budget": "30dB"}, "needs data"),
        ({"fail_below": "20dB"}, "needs data"),
    ],
    ids=["static", "auto", "budget", "threshold"],
)
def test_other_choices_need_real_data(options, message):
    with pytest.raises(OptionError, match=message):
        anybit.quantize(make_model(), "random-tokens", **options)


DECODER = """<ir_version: 9, opset_import: ["": 20]>
g (int64[n,t] ids, int64[n,all] attention_mask, int64[n,t] position_ids, float[n,2,past,8] cache)
    => (float[n,t,8] y, float[n,2,all,8] present) {
    word = Gather(words, ids)
    heads = Constant<value_ints = [0, 0, 2, 8]>()
    split = Reshape(word, heads)
    new = Transpose<perm = [0, 2, 1, 3]>(split)
    present = Concat<axis = -2>(cache, new)
    axes = Constant<value_ints = [2]>()
    column = Unsqueeze(position_ids, axes)
    place = Cast<to = 1>(column)
    turned = Mul(word, place)
    hidden = MatMul(turned, w1)
    bounded = Tanh(hidden)
    y = MatMul(bounded, w2)}"""


def test_samples_of_decoders_have_an_empty_cache():
    for batch in generate(make_model(DECODER)):
        assert batch["cache"].shape == (8, 2, 0, 8)
        assert batch["attention_mask"].shape == (8, 32)
        assert batch["attention_mask"].all()
        np.testing.assert_array_equal(batch["position_ids"], np.tile(np.arange(32), (8, 1)))


def test_decoder_is_quantized_with_an_empty_cache():
    result = anybit.quantize(make_model(DECODER), "random-tokens", activations="int8 dynamic")
    assert result.verdict.passed
    assert len(result.layers) == 2


FLOATS = """<ir_version: 9, opset_import: ["": 20]>
g (int64[n] ids, float[n,16] x) => (float[n,16] y) {
    word = Gather(words, ids) sum = Add(word, x) y = MatMul(sum, w1)}"""
NO_TABLE = """<ir_version: 9, opset_import: ["": 20]>
g (int64[n,16] ids) => (float[n,16] y) { x = Cast<to = 1>(ids) y = MatMul(x, w1)}"""
HUGE = """<ir_version: 9, opset_import: ["": 20]>
g (int64[9000000000] ids) => (float[n,16] y) { x = Gather(words, ids) y = MatMul(x, w1)}"""
SCALAR = """<ir_version: 9, opset_import: ["": 20]>
g (int64[] ids) => (float[16] y) { x = Gather(words, ids) y = MatMul(x, w1)}"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FLOATS, "input 'x' is float32"),
        (NO_TABLE, "no input selects rows of a constant table"),
        (HUGE, "has 9000000000 elements"),
        (SCALAR, "input 'ids' has no dimensions"),
    ],
    ids=["float", "no-table", "huge", "scalar"],
)
def test_models_without_tokens_are_refused(text, message):
    with pytest.raises(DataError, match=message):
        anybit.quantize(make_model(text), "random-tokens")
