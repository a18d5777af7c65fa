package headers

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const limit = 16 << 10

// Metadata up to the limit is passed on; more is refused, without advice to retry.
func TestLimitOfMetadata(t *testing.T) {
	room := limit - addedBytes - len("key") - 32
	for size, code := range map[int]codes.Code{room: codes.OK, room + 1: codes.ResourceExhausted} {
		err := Check(metadata.Pairs("key", strings.Repeat("x", size)), limit)
		if status.Code(err) != code || len(status.Convert(err).Details()) > 0 {
			t.Errorf("metadata of %d bytes: %v", size, err)
		}
	}
}

// Metadata that gRPC does not allow is refused, as on a forwarded call; the front's and gRPC's own keys are not looked at.
func TestMetadataThatIsNotGRPC(t *testing.T) {
	for code, calls := range map[codes.Code][]metadata.MD{
		codes.Internal: {{"key": {"fine", "\xff\xfe"}}, {"key": {"\u00e9"}}, {"key": {"\x00"}}, {"key%00": {"value"}}, {"Key": {"value"}}},
		codes.OK:       {{"key-bin": {"\xff\x00"}}, {"a_b.c-0": {" ~"}}, {"key": {""}}, {PeerKey: {"\xff"}}, {"user-agent": {"\xff"}}},
	} {
		for _, own := range calls {
			if err := Check(own, limit); status.Code(err) != code {
				t.Errorf("%q: %v", own, err)
			}
		}
	}
}
