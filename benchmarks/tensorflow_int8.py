"""Measures the ways in which TensorFlow can compute in 8 bits on a CPU, against float32.

Command: make bench-tensorflow-int8 ARGS=--document

The work of each way is one product of a ViT-S/16, (batch x 197, 384) x (384, 1536), or the whole model. In each round
every way has one turn. The speed of a way is the median of the ratios to float32 round by round. The error is the
largest difference from the float32 result, divided by the largest float32 value. A way that TensorFlow refuses has the
error message instead. A line of JSON for each way is added to benchmarks/results/tensorflow_int8.jsonl, with device,
commit and versions. --document writes the table into docs/serving/eight_bits.md. Use a quiet machine.
"""

import argparse
import os
import sys
import time

os.environ["TF_ONEDNN_ASSUME_FROZEN_WEIGHTS"] = "1"  # As in the server. TensorFlow reads it when it starts.

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from benchmarks.provenance import device, provenance, versions_in_words
from benchmarks.records import add_options, append, markdown_table, newest, put_between, read
from keras_vit.export.precision import in_bfloat16

TOKENS, WIDTH, OUTPUTS = 197, 384, 1536
KEYS = ("device", "work", "batch_size", "way")
"""Keys that identify a line of the results, besides its time."""
FLOAT32 = "float32"


def product_ways(images):
    """{name: function of no arguments that multiplies}. Weights are constants. Products in 8 bits include rounding."""
    rng = np.random.default_rng(0)
    inputs = tf.constant(rng.standard_normal((images * TOKENS, WIDTH), "float32"))
    kernel = rng.standard_normal((WIDTH, OUTPUTS), "float32")
    limit, limits = float(np.abs(inputs).max()), np.abs(kernel).max(axis=0)
    scale, scales = np.float32(limit / 127), limits / 127
    kernel_int8 = np.round(kernel / scales).astype("int8")
    rounded = tf.bitcast(tf.constant(kernel_int8), tf.qint8)
    zeros = np.zeros(OUTPUTS, "int32")
    int8 = {"quantization_min_val": -128, "quantization_max_val": 127}
    weights = {"rhs": rounded, "rhs_scales": scales, "rhs_zero_points": zeros, "rhs_quantization_axis": 1}
    weights |= {"rhs_quantization_min_val": -128, "rhs_quantization_max_val": 127}

    def integers(x):
        kernel = tf.constant(kernel_int8)
        products = tf.raw_ops.BatchMatMulV3(x=tf.cast(tf.round(x / scale), tf.int8), y=kernel, Tout=tf.int32)
        return tf.cast(products, tf.float32) * (scale * scales)

    def uniform(x):
        x = tf.raw_ops.UniformQuantize(input=x, scales=scale, zero_points=0, Tout=tf.qint8, **int8)
        limits = {"output_quantization_min_val": -(2**31), "output_quantization_max_val": 2**31 - 1}
        outputs = {"output_scales": scale * scales, "output_zero_points": zeros, "output_quantization_axis": 1}
        inputs = {"lhs_scales": scale, "lhs_zero_points": 0, "lhs_quantization_min_val": -128}
        options = weights | inputs | outputs | limits | {"lhs_quantization_max_val": 127, "Tout": tf.qint32}
        products = tf.raw_ops.UniformQuantizedDot(lhs=x, **options)
        return tf.cast(tf.bitcast(products, tf.int32), tf.float32) * (scale * scales)

    functions = {
        FLOAT32: tf.function(lambda x: tf.matmul(x, kernel)),
        "bfloat16": tf.function(lambda x: tf.cast(tf.cast(x, "bfloat16") @ tf.cast(kernel, "bfloat16"), tf.float32)),
        "float32, XLA": tf.function(lambda x: tf.matmul(x, kernel), jit_compile=True),
        "`_QuantizedMatMul` (oneDNN, internal)": tf.function(lambda x: onednn_product(x, limit, kernel)),
        "`tf.matmul` of int8, XLA": tf.function(integers, jit_compile=True),
        "`tf.matmul` of int8": tf.function(integers),
        "`QuantizedMatMul`": tf.function(lambda x: unsigned_product(x, limit, kernel)),
        "`QuantizedMatMulWithBiasAndDequantize`": tf.function(lambda x: product_with_bias(x, limit, kernel)),
        "`UniformQuantizedDot`": tf.function(uniform),
        "`UniformQuantizedDotHybrid`": tf.function(
            lambda x: tf.raw_ops.UniformQuantizedDotHybrid(lhs=x, Tout=tf.float32, **weights)
        ),
    }
    return {name: lambda function=function: function(inputs) for name, function in functions.items()}


def unsigned_product(x, limit, kernel):
    """Rounds both factors to unsigned integers, and multiplies with `QuantizedMatMul`."""
    x, y = (_quantized(factor, largest, tf.quint8) for factor, largest in ((x, limit), (kernel, np.abs(kernel).max())))
    ranges = {"min_a": x[1], "max_a": x[2], "min_b": y[1], "max_b": y[2]}
    outputs = tf.raw_ops.QuantizedMatMul(a=x[0], b=y[0], Toutput=tf.qint32, **ranges)
    return tf.raw_ops.Dequantize(input=outputs[0], min_range=outputs[1], max_range=outputs[2], mode="MIN_FIRST")


def product_with_bias(x, limit, kernel):
    """Rounds the inputs to unsigned and the kernel to signed integers, and multiplies with TensorFlow's public op."""
    x, y = _quantized(x, limit, tf.quint8), _quantized(kernel, np.abs(kernel).max(), tf.qint8)
    ranges = {"min_a": x[1], "max_a": x[2], "min_b": y[1], "max_b": y[2]}
    ranges |= {"min_freezed_output": -1.0, "max_freezed_output": 1.0}
    bias, kinds = tf.zeros(kernel.shape[1]), {"Toutput": tf.float32, "input_quant_mode": "MIN_FIRST"}
    return tf.raw_ops.QuantizedMatMulWithBiasAndDequantize(a=x[0], b=y[0], bias=bias, **ranges, **kinds)


def _quantized(values, largest, kind):
    mode = "MIN_FIRST" if kind is tf.quint8 else "SCALED"
    return tf.raw_ops.QuantizeV2(input=values, min_range=-largest, max_range=largest, T=kind, mode=mode)


def onednn_product(x, limit, kernel):
    """Rounds both factors to 8 bits, the kernel by column, and multiplies with TensorFlow's internal operation."""
    from tensorflow.python.framework import op_def_library

    limits = np.abs(kernel).max(axis=0)
    rounded = tf.bitcast(tf.constant(np.round(kernel * (127 / limits)).astype("int8")), tf.qint8)
    ranges = {"min_range": -limit, "max_range": limit, "narrow_range": True}
    x = tf.raw_ops.QuantizeV2(input=x, T=tf.qint8, mode="SCALED", round_mode="HALF_TO_EVEN", **ranges)
    types = {"T1": tf.qint8, "T2": tf.qint8, "Tbias": tf.float32, "U": tf.float32, "Tout": tf.float32}
    flags = {"transpose_a": False, "transpose_b": False, "is_weight_const": True, "is_bias_const": True}
    flags |= {"input_quant_mode": "SCALED", "output_quant_mode": "SCALED", "leakyrelu_alpha": 0.0}
    outputs = {"Tdevice_outputs": [tf.float32], "Thost_outputs": [], "fused_ops": ["BiasAdd", "Dequantize"]}
    inputs = [x.output, rounded, tf.zeros(len(limits))], [x.output_min, x.output_max, -limits, limits]
    arguments = {"name": "product", "device_inputs": inputs[0], "host_inputs": inputs[1]}
    return op_def_library.apply_op("_QuantizedMatMul", **arguments, **types, **flags, **outputs)[0][0]


def model_ways(images):
    """{name: function of no arguments that classifies}, for a ViT-S/16 with random weights."""
    model = keras_vit.ViT("S/16")
    rng = np.random.default_rng(0)
    model.layers[-1].set_weights([rng.standard_normal(w.shape) / 20 for w in model.layers[-1].get_weights()])
    pixels = tf.constant(rng.standard_normal((images, 224, 224, 3), "float32"))
    quantized = keras.models.clone_model(model)
    quantized.set_weights(model.get_weights())
    quantized.quantize("int8")
    ways = {
        FLOAT32: (model, False),
        "bfloat16": (in_bfloat16(model), False),
        "float32, XLA": (model, True),
        "Keras's `model.quantize`": (quantized, False),
        "Keras's `model.quantize`, XLA": (quantized, True),
    }
    functions = {
        name: tf.function(lambda x, model=model: model(x, training=False), jit_compile=compiled)
        for name, (model, compiled) in ways.items()
    }
    return {name: lambda function=function: function(pixels) for name, function in functions.items()}


def measure(ways, rounds):
    """{name: (speed, milliseconds, error)} of the ways that run, and {name: message} of the others."""
    results, failures = {}, {}
    for name, run in ways.items():
        try:
            results[name] = np.asarray(run())
        except Exception as error:  # TensorFlow raises many types.
            failures[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
    seconds = {name: [] for name in results}
    for _ in range(rounds):
        for name in results:
            begun = time.perf_counter()
            np.asarray(ways[name]())
            seconds[name].append(time.perf_counter() - begun)
    exact = results[FLOAT32]
    errors = {name: float(np.abs(result - exact).max() / np.abs(exact).max()) for name, result in results.items()}
    speeds = {name: float(np.median(np.divide(seconds[FLOAT32], seconds[name]))) for name in results}
    return {name: (speeds[name], 1e3 * float(np.median(seconds[name])), errors[name]) for name in results}, failures


def table(rows):
    """Markdown: the speed and the error of each way, for each work."""
    lines = []
    for work in dict.fromkeys(row["work"] for row in rows):
        members = [row for row in rows if row["work"] == work]
        batches = sorted({row["batch_size"] for row in members}, reverse=True)
        cells = {(row["way"], row["batch_size"]): row for row in members}
        columns = [work, *(f"speed, {batch} image{'s' * (batch > 1)}" for batch in batches), "error"]
        ways = dict.fromkeys(row["way"] for row in members)
        body = [
            [way, *(_speed(cells[way, batch]) for batch in batches), _error(cells[way, batches[0]])] for way in ways
        ]
        lines.append(markdown_table(columns, body, right=columns[1:]))
    return "\n\n".join(lines) + "\n"


def _speed(row):
    return "does not run" if row["speed"] is None else f"{row['speed']:.2f}"


def _error(row):
    return row["message"] if row["speed"] is None else f"{row['error']:.2g}" if row["error"] < 1 else "wrong"


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, metavar="N", help="turns of each way")
    add_options(parser, "bench-tensorflow-int8", "tensorflow_int8")
    options = parser.parse_args(arguments)
    origin = provenance()
    for work, build in ((f"product {WIDTH} x {OUTPUTS}", product_ways), ("ViT-S/16", model_ways)):
        for batch_size in (8, 1):
            measured, failures = measure(build(batch_size), options.rounds)
            common = origin | {"device": device(), "work": work, "batch_size": batch_size, "rounds": options.rounds}
            rows = [
                common | {"way": way, "speed": speed, "milliseconds": milliseconds, "error": error}
                for way, (speed, milliseconds, error) in measured.items()
            ]
            rows += [common | {"way": way, "speed": None, "message": why} for way, why in failures.items()]
            append(rows, options.results)
    rows = newest(read(options.results), KEYS)
    print(table(rows))
    if options.document:
        words = f"{rows[-1]['device']}; {versions_in_words(('keras', 'tensorflow'))}"
        put_between("bench-tensorflow-int8", f"Measured on: {words}.\n\n{table(rows)}")


if __name__ == "__main__":
    main(sys.argv[1:])
