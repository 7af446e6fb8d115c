// A model as a module of WebAssembly: opened once, run as often as you like. For browsers and for Node.

const PIECE = 64; // bytes: weights and samples begin at multiples of it

export class Model {
    constructor(exports) {
        this.exports = exports;
    }

    /** Open a model from the bytes of `model.wasm` and of `weights.bin`. Throws an Error that says why it cannot. */
    static async open(code, weights) {
        const { instance } = await WebAssembly.instantiate(code, {});
        const { memory, reserve, start, _initialize } = instance.exports;
        _initialize?.();
        const place = reserve(weights.byteLength);
        if (!place) {
            throw new Error("there is too little memory for the weights");
        }
        new Uint8Array(memory.buffer, place, weights.byteLength).set(new Uint8Array(weights));
        const made = new Model(instance.exports);
        if (start(place, weights.byteLength)) {
            throw new Error(made.explain());
        }
        return made;
    }

    /** Run the model on the bytes of its inputs; return the bytes of its outputs, copied. */
    run(inputs, outputCount) {
        const { memory, find_input, find_output, count_input_bytes, count_output_bytes, run } = this.exports;
        inputs.forEach((bytes, i) => {
            if (bytes.byteLength !== count_input_bytes(i)) {
                throw new Error(`input ${i} has ${bytes.byteLength} bytes, not ${count_input_bytes(i)}`);
            }
            new Uint8Array(memory.buffer, find_input(i), bytes.byteLength).set(bytes);
        });
        if (run()) {
            throw new Error(this.explain());
        }
        return Array.from({ length: outputCount }, (_, i) =>
            new Uint8Array(memory.buffer, find_output(i), count_output_bytes(i)).slice());
    }

    explain() {
        const bytes = new Uint8Array(this.exports.memory.buffer, this.exports.explain());
        return new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0)));
    }
}

/** Run a model of one input and one output, both of floats, on its `sample.bin`; return the largest error as a share
 * of the range of what onnxruntime computed. */
export function testOnSample(model, sample) {
    const inputBytes = model.exports.count_input_bytes(0);
    const begin = Math.ceil(inputBytes / PIECE) * PIECE;
    const expected = new Float32Array(sample.slice(begin, begin + model.exports.count_output_bytes(0)));
    const [bytes] = model.run([new Uint8Array(sample, 0, inputBytes)], 1);
    const found = new Float32Array(bytes.buffer);
    const range = Math.max(...expected) - Math.min(...expected);
    return Math.max(...found.map((value, i) => Math.abs(value - expected[i]))) / range;
}
