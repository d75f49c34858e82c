"""Opens files of models in other runtimes, on the CPU."""


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


def litert_runner(path, threads):
    """The function of a LiteRT file, which takes `images`."""
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter(path, num_threads=threads).get_signature_runner()
