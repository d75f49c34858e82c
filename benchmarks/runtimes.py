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
