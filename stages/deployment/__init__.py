"""ONNX export, parity, quantization, profiling, the bundle."""
