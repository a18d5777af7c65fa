package main

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"io"
	"runtime"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// compressed returns a message as grpc-go hands it to the codec.
func compressed(t *testing.T, name string, packed []byte) mem.BufferSlice {
	reader, err := encoding.GetCompressor(name).Decompress(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	data, err := mem.ReadAll(reader, mem.DefaultBufferPool())
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func pack(t *testing.T, name string, size int) []byte {
	var packed bytes.Buffer
	var writer io.WriteCloser = gzip.NewWriter(&packed)
	if name == "deflate" {
		writer = zlib.NewWriter(&packed)
	}
	writer.Write(make([]byte, size))
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

// A compressed message of the limit is accepted. One byte more, compressed or not, or bytes in another compression are INVALID_ARGUMENT.
func TestLimitOfCompressedMessages(t *testing.T) {
	const limit = 100_000
	for _, name := range []string{"gzip", "deflate"} {
		whole := pack(t, name, limit)
		for code, packed := range map[codes.Code][][]byte{
			codes.OK:              {whole, pack(t, name, 0), pack(t, name, 1)},
			codes.InvalidArgument: {pack(t, name, limit+1), pack(t, name, 100*limit), whole[:len(whole)-9], {}, make([]byte, limit+1), []byte("text")},
		} {
			for _, bytes := range packed {
				request := request{limit: limit, decompressions: make(chan struct{}, 1)}
				if err := (bytesCodec{}).Unmarshal(compressed(t, name, bytes), &request); err != nil || request.refusal.Code() != code {
					t.Errorf("%s, %d bytes: %v, %v, not %v", name, len(bytes), err, request.refusal, code)
				}
				if request.wireBytes != len(bytes)+messageHeaderBytes {
					t.Errorf("%s, %d bytes: counted as %d", name, len(bytes), request.wireBytes)
				}
			}
		}
	}
}

// Decompressing takes no more memory than the limit, whatever a message unpacks to.
func TestDecompressionTakesNoMoreThanTheLimit(t *testing.T) {
	const limit = 64 << 10
	data := compressed(t, "gzip", pack(t, "gzip", 16<<20))
	result := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			request := request{limit: limit, decompressions: make(chan struct{}, 1)}
			request.take(data)
		}
	})
	// The buffers, and 45 kB of gzip itself.
	if taken := result.AllocedBytesPerOp(); taken > 4*limit {
		t.Errorf("a message of 16 MiB takes %d bytes, with a limit of %d", taken, limit)
	}
}

// Decompressing does not keep the only processor: another goroutine runs after each turnBytes, at the latest.
func TestDecompressionGivesWay(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const limit = 4 << 20
	data := compressed(t, "gzip", pack(t, "gzip", limit))
	turns := turnsOfAnother(func() {
		request := request{limit: limit, decompressions: make(chan struct{}, 1)}
		request.take(data)
	})
	if turns < limit/turnBytes/2 {
		t.Errorf("another goroutine has run %d times while %d bytes were decompressed", turns, limit)
	}
}
