// SPDX-License-Identifier: Apache-2.0
// Digits in 4 bits, without Python: Digits.exe MODEL LIBRARY IMAGES
//
// LIBRARY is anybit's custom operator library, IMAGES a NumPy file (.npy) of 8x8 float32 images.
// Prints the predicted digit and its score per image.
//
// This needs no packages: ONNX Runtime's C API is a table of functions with stable indices. With the
// package Microsoft.ML.OnnxRuntime, use `options.RegisterCustomOpLibrary(library)`.
using System;
using System.Globalization;
using System.IO;
using System.Runtime.InteropServices;
using System.Text;

static class Digits
{
    const uint ApiVersion = 17;
    const int Pixels = 64, Count = 10;

    [StructLayout(LayoutKind.Sequential)]
    struct ApiBase { public IntPtr GetApi, GetVersion; }

    [DllImport("onnxruntime")]
    static extern IntPtr OrtGetApiBase();

    // A null status is success. Paths are in the encoding of the system.
    delegate IntPtr GetApi(uint version);
    delegate IntPtr GetErrorMessage(IntPtr status);
    delegate IntPtr CreateEnv(int level, byte[] name, out IntPtr env);
    delegate IntPtr CreateSessionOptions(out IntPtr options);
    delegate IntPtr RegisterLibrary(IntPtr options, byte[] path);
    delegate IntPtr CreateSession(IntPtr env, byte[] path, IntPtr options, out IntPtr session);
    delegate IntPtr CreateCpuMemoryInfo(int allocator, int type, out IntPtr info);
    delegate IntPtr CreateTensor(IntPtr info, IntPtr data, UIntPtr bytes, long[] shape,
                                 UIntPtr rank, int type, out IntPtr tensor);
    delegate IntPtr Run(IntPtr session, IntPtr options, IntPtr[] inputNames, IntPtr[] inputs,
                        UIntPtr inputCount, IntPtr[] outputNames, UIntPtr outputCount,
                        IntPtr[] outputs);
    delegate IntPtr GetTensorData(IntPtr tensor, out IntPtr data);

    static IntPtr api;

    static T At<T>(int place) where T : class
    {
        IntPtr function = Marshal.ReadIntPtr(api, place * IntPtr.Size);
        return (T)(object)Marshal.GetDelegateForFunctionPointer(function, typeof(T));
    }

    static void Check(IntPtr status)
    {
        if (status != IntPtr.Zero)
            throw new Exception(Marshal.PtrToStringAnsi(At<GetErrorMessage>(2)(status)));
    }

    static byte[] SystemPath(string path)
    {
        bool windows = Path.DirectorySeparatorChar == '\\';
        return (windows ? Encoding.Unicode : Encoding.UTF8).GetBytes(path + "\0");
    }

    static float[] ImagesOf(string path)
    {
        byte[] bytes = File.ReadAllBytes(path);
        // Format: eight bytes of magic, two bytes of header length, the header, the values.
        int start = bytes.Length < 10 ? int.MaxValue : 10 + bytes[8] + 256 * bytes[9];
        if (start > bytes.Length) throw new Exception(path + " is not an .npy file");
        var images = new float[(bytes.Length - start) / sizeof(float)];
        Buffer.BlockCopy(bytes, start, images, 0, images.Length * sizeof(float));
        return images;
    }

    static float[] Scores(string model, string library, float[] images)
    {
        var apiBase = (ApiBase)Marshal.PtrToStructure(OrtGetApiBase(), typeof(ApiBase));
        api = ((GetApi)Marshal.GetDelegateForFunctionPointer(apiBase.GetApi, typeof(GetApi)))(ApiVersion);
        if (api == IntPtr.Zero) throw new Exception("ONNX Runtime 1.17 or newer is needed");
        IntPtr env, options, session, memory, x, data;
        Check(At<CreateEnv>(3)(2, Encoding.ASCII.GetBytes("digits\0"), out env));  // warnings
        Check(At<CreateSessionOptions>(10)(out options));
        Check(At<RegisterLibrary>(228)(options, SystemPath(library)));
        Check(At<CreateSession>(7)(env, SystemPath(model), options, out session));
        Check(At<CreateCpuMemoryInfo>(69)(1, 0, out memory));  // an arena, the default

        var shape = new long[] { images.Length / Pixels, 8, 8 };
        var one = new UIntPtr(1);
        var found = new float[shape[0] * Count];
        GCHandle pinned = GCHandle.Alloc(images, GCHandleType.Pinned);
        try
        {
            Check(At<CreateTensor>(49)(memory, pinned.AddrOfPinnedObject(),
                                       new UIntPtr((ulong)images.Length * sizeof(float)), shape,
                                       new UIntPtr((ulong)shape.Length), 1, out x));
            var outputs = new IntPtr[1];
            Check(At<Run>(9)(session, IntPtr.Zero, new[] { Marshal.StringToHGlobalAnsi("x") },
                             new[] { x }, one, new[] { Marshal.StringToHGlobalAnsi("y") }, one,
                             outputs));
            Check(At<GetTensorData>(51)(outputs[0], out data));
            Marshal.Copy(data, found, 0, found.Length);
        }
        finally
        {
            pinned.Free();
        }
        return found;
    }

    static int Main(string[] words)
    {
        if (words.Length != 3)
        {
            Console.Error.WriteLine("Digits.exe MODEL LIBRARY IMAGES");
            return 2;
        }
        try
        {
            float[] scores = Scores(words[0], words[1], ImagesOf(words[2]));
            for (int row = 0; row < scores.Length; row += Count)
            {
                int best = row;
                for (int i = row + 1; i < row + Count; ++i)
                    if (scores[i] > scores[best]) best = i;
                Console.WriteLine("{0} {1}", best - row,
                                  scores[best].ToString("F6", CultureInfo.InvariantCulture));
            }
        }
        catch (Exception error)
        {
            Console.Error.WriteLine(error.Message);
            return 1;
        }
        return 0;
    }
}
