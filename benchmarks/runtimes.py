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
