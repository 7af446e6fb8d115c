// An application in C# that runs a bundle's model_ctx.onnx in ONNX Runtime: byoc's provider takes the regions, and a
// driver of each codegen computes them.
//
//     dotnet run -- FOLDER
//
// FOLDER is what make_bundle.py wrote.
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using Microsoft.ML.OnnxRuntime;

static class Program
{
    const string Provider = "byoc";

    static int Main(string[] arguments)
    {
        if (arguments.Length != 1)
        {
            Console.Error.WriteLine("usage: dotnet run -- FOLDER");
            return 2;
        }
        try
        {
            return Run(Path.GetFullPath(arguments[0]));
        }
        catch (Exception error) when (error is OnnxRuntimeException || error is IOException || error is InvalidOperationException)
        {
            Console.Error.WriteLine(error.Message);
            return 1;
        }
    }

    static int Run(string folder)
    {
        var environment = OrtEnv.Instance();
        environment.RegisterExecutionProviderLibrary(Provider, Path.Combine(folder, "libbyoc_provider.so"));
        var devices = environment.GetEpDevices().Where(device => device.EpName == Provider).ToList();
        if (devices.Count == 0)
        {
            throw new InvalidOperationException($"ONNX Runtime names no device of the provider '{Provider}'");
        }
        using (var options = new SessionOptions())
        {
            var drivers = Directory.GetFiles(folder, "libbyoc_driver_*.so").ToDictionary(
                path => "driver." + Path.GetFileNameWithoutExtension(path).Substring("libbyoc_driver_".Length));
            options.AppendExecutionProvider(environment, devices.Take(1).ToList(), drivers);
            // This optimizer moves a QuantizeLinear out of a region and leaves what lies between without a type.
            options.AddSessionConfigEntry("optimization.disable_specified_optimizers", "QDQPropagationTransformer");
            using (var session = new InferenceSession(Path.Combine(folder, "m.byoc", "model_ctx.onnx"), options))
            {
                return Compare(session, folder);
            }
        }
    }

    // Run the session on the sample, and print how far its output is from that of the model in onnxruntime alone.
    static int Compare(InferenceSession session, string folder)
    {
        var input = session.InputMetadata.Single();
        var output = session.OutputMetadata.Single();
        var shape = input.Value.Dimensions.Select(extent => (long)extent).ToArray();
        var expected = ReadFloats(Path.Combine(folder, "expected.bin"));
        using (var given = OrtValue.CreateTensorValueFromMemory(ReadFloats(Path.Combine(folder, "input.bin")), shape))
        using (var run = new RunOptions())
        using (var results = session.Run(run, new[] { input.Key }, new[] { given }, new[] { output.Key }))
        {
            var made = results[0].GetTensorDataAsSpan<float>().ToArray();
            if (made.Length != expected.Length)
            {
                throw new InvalidOperationException($"{output.Key} has {made.Length} elements instead of {expected.Length}");
            }
            var range = expected.Max() - expected.Min();
            var error = made.Zip(expected, (one, other) => Math.Abs(one - other)).Max() / range;
            var right = error <= 1e-4;
            Console.WriteLine($"{(right ? "right" : "wrong")}: largest error {error:0.0e+0} of the range of {output.Key}");
            return right ? 0 : 1;
        }
    }

    static float[] ReadFloats(string path)
    {
        var bytes = File.ReadAllBytes(path);
        var values = new float[bytes.Length / sizeof(float)];
        Buffer.BlockCopy(bytes, 0, values, 0, values.Length * sizeof(float));
        return values;
    }
}
