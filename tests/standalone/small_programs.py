"""A small model as a program, with kernels of byoc, functions of emx-onnx-cgen, and a region."""

WEIGHTS = ", ".join(f"{number % 7 - 3}" for number in range(54))
SMALL = f"""net (float[1, 2, 6, 6] x) => (float[1, 3, 6, 6] y) <float[3, 2, 3, 3] k = {{{WEIGHTS}}}> {{
    a = Conv <pads = [1, 1, 1, 1]> (x, k)
    b = Relu(a)
    c = Sigmoid(b)
    y = Add(b, c)
}}"""
