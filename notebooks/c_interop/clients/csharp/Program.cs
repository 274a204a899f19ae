// Program FOLDER TOKENS [fail] < prompt: stream an answer, then print its token ids and what each token took.
using System;
using System.Globalization;
using System.IO;
using System.Text;

sealed class Llm : IDisposable
{
    readonly ulong handle;

    public Llm(string folder, string device = "CPU")
    {
        Check(Native.llm_open(Native.LLM_VERSION, Utf8(folder), Utf8(device), null, null, UIntPtr.Zero, out handle));
    }

    public long[] Generate(byte[] prompt, int tokens, Action<byte[]> onText, out Native.llm_result result)
    {
        Exception thrown = null;
        Native.llm_callback callback = (text, size, user) =>
        {
            try
            {
                var bytes = new byte[(int)size];
                System.Runtime.InteropServices.Marshal.Copy(text, bytes, 0, bytes.Length);
                onText(bytes);
                return 0;
            }
            catch (Exception error)  // may not pass through C
            {
                thrown = error;
                return 1;
            }
        };
        var ids = new long[tokens];
        var status = Native.llm_generate(handle, prompt, (UIntPtr)prompt.Length, (uint)tokens, 0, callback, IntPtr.Zero,
                                         ids, (UIntPtr)ids.Length, out result);
        GC.KeepAlive(callback);  // C does not count as a user of it
        if (thrown != null) throw new InvalidOperationException("The callback failed: " + thrown.Message, thrown);
        Check(status);
        Array.Resize(ref ids, (int)result.new_tokens);
        return ids;
    }

    public void Dispose() { Check(Native.llm_close(handle)); }

    static byte[] Utf8(string text) { return Encoding.UTF8.GetBytes(text + "\0"); }

    static void Check(int status)
    {
        if (status == 0) return;
        var buffer = new byte[(int)Native.llm_last_error(null, UIntPtr.Zero)];
        Native.llm_last_error(buffer, (UIntPtr)buffer.Length);
        throw new InvalidOperationException(Encoding.UTF8.GetString(buffer, 0, buffer.Length - 1));
    }
}

static class Program
{
    static int Main(string[] arguments)
    {
        var prompt = new MemoryStream();
        Console.OpenStandardInput().CopyTo(prompt);
        var output = Console.OpenStandardOutput();
        var pieces = 0;
        var fail = arguments.Length > 2;
        Action<byte[]> show = bytes =>
        {
            output.Write(bytes, 0, bytes.Length);
            output.Flush();
            if (fail) GC.Collect();  // for tests: nothing that C uses may be collected
            if (fail && ++pieces == 3) throw new Exception("at the third piece");
        };
        try
        {
            using (var model = new Llm(arguments[0]))
            {
                var tokens = int.Parse(arguments[1]);
                Native.llm_result result;
                long[] ids;
                try
                {
                    ids = model.Generate(prompt.ToArray(), tokens, show, out result);
                }
                catch (InvalidOperationException error) when (fail)
                {
                    Console.Error.WriteLine(error.Message);
                    fail = false;
                    output.WriteByte((byte)'\n');
                    ids = model.Generate(prompt.ToArray(), tokens, show, out result);
                }
                var text = string.Format(CultureInfo.InvariantCulture,
                    "\nids: {0}\nms per token: {1:F3}, in the model: {2:F3}\n", string.Join(" ", ids),
                    (result.whole_ms - result.tokenize_ms) / ids.Length, result.infer_ms / ids.Length);
                var bytes = Encoding.UTF8.GetBytes(text);
                output.Write(bytes, 0, bytes.Length);
            }
            return 0;
        }
        catch (InvalidOperationException error)
        {
            Console.Error.WriteLine(error.Message);
            return 1;
        }
    }
}
