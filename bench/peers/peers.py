"""PyTorch and ONNX Runtime, one thread each. Every kernel has `call()`, which is timed, and `output()`."""


class Torch:
    """`torch.nn.functional.scaled_dot_product_attention`; heads beyond one share keys and values."""

    def __init__(self, torch, q, k, v, dtype, causal=False):
        self.torch, kind = torch, getattr(torch, dtype)
        self.q = torch.from_numpy(q).to(kind)[None]
        self.k, self.v = (torch.from_numpy(a).to(kind)[None, None] for a in (k, v))
        self.options = {"is_causal": causal}
        if len(q) > 1:
            self.options["enable_gqa"] = True
        self.attend = torch.nn.functional.scaled_dot_product_attention

    def call(self):
        with self.torch.inference_mode():
            self.out = self.attend(self.q, self.k, self.v, **self.options)

    def output(self):
        return self.out.float().reshape(-1, self.out.shape[-1]).numpy()


def load_torch():
    import torch

    torch.set_num_threads(1)
    return torch


def load_onnx():
    import onnx
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    return onnx, onnxruntime


class MultiHeadAttention:
    """ONNX Runtime's operator `com.microsoft.MultiHeadAttention` with one head."""

    def __init__(self, modules, q, k, v, causal=False):
        onnx, runtime = modules
        make, f32 = onnx.helper, onnx.TensorProto.FLOAT
        feed = dict(zip("qkv", (q, k, v)))
        inputs = [make.make_tensor_value_info(x, f32, [1, *a.shape]) for x, a in feed.items()]
        outputs = [make.make_tensor_value_info("o", f32, [1, *q.shape])]
        how = {"domain": "com.microsoft", "num_heads": 1, "unidirectional": int(causal)}
        node = make.make_node("MultiHeadAttention", ["q", "k", "v"], ["o"], **how)
        graph = make.make_graph([node], "g", inputs, outputs)
        sets = [make.make_opsetid("", 17), make.make_opsetid("com.microsoft", 1)]
        model = make.make_model(graph, opset_imports=sets, ir_version=10)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self.feed = {x: a[None] for x, a in feed.items()}

    def call(self):
        self.out = self.session.run(None, self.feed)[0]

    def output(self):
        return self.out[0]
