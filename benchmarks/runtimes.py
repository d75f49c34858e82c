"""Opens files of models in other runtimes, on the CPU."""

import os


def onnx_session(path, threads):
    """An ONNX Runtime session."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def openvino_model(path, threads, **properties):
    """A compiled model of OpenVINO, with properties such as INFERENCE_PRECISION_HINT."""
    import openvino

    return openvino.Core().compile_model(path, "CPU", properties | {"INFERENCE_NUM_THREADS": threads})


SUFFIXES = {"onnx": ".onnx", "litert": ".tflite", "openvino": ".xml"}
"""{format of `keras_vit.export_model`: suffix of its files}"""


def open_file(format, path, hint="f32"):
    """A function from images to probabilities, of a file of `keras_vit.export_model`. It uses all cores.

    Args:
        format: A key of `SUFFIXES`.
        path: Path of the file, a string.
        hint: Value of INFERENCE_PRECISION_HINT, for OpenVINO.
    """
    threads = len(os.sched_getaffinity(0))
    if format == "openvino":
        compiled = openvino_model(path, threads, INFERENCE_PRECISION_HINT=hint)
        return lambda images: compiled(images)["probabilities"]
    if format == "onnx":
        session = onnx_session(path, threads)
        return lambda images: session.run(["probabilities"], {"images": images})[0]
    return litert_model(path, threads)


def litert_model(path, threads):
    """A function from images to probabilities, computed by LiteRT."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path, num_threads=threads)
    interpreter.allocate_tensors()
    [source], [target] = interpreter.get_input_details(), interpreter.get_output_details()

    def answer(images):
        if interpreter.get_input_details()[0]["shape"].tolist() != list(images.shape):
            interpreter.resize_tensor_input(source["index"], images.shape)
            interpreter.allocate_tensors()
        interpreter.set_tensor(source["index"], images)
        interpreter.invoke()
        return interpreter.get_tensor(target["index"])

    return answer
