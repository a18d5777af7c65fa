// Package headers filters, checks and measures the headers of calls, which grpc-go calls metadata.
package headers

import (
	"encoding/base64"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// How much of the limit of a call's headers is left to what gRPC and the front add on the way to the server. Beyond the limit grpc-go would
// end a forwarded call with an error of its own.
const addedBytes = 1 << 10

// Keys in the metadata of a forwarded call (server/gavel_server/rpc/identity/authentication.py, call_context.py): the caller's address and handle, and
// the secret of this start, by which the server knows the front. No caller can set a key with this prefix, except incarnationKey.
const (
	PeerKey   = "gavel-peer"
	HandleKey = "gavel-handle"
	SecretKey = "gavel-secret"

	// The server answers with it, before everything else, if the call waits and needs no place among those that it works on.
	WaitsKey = "gavel-waits"

	// The time at which the front received the call, in nanoseconds since the epoch.
	ReceivedKey = "gavel-received"

	prefix         = "gavel-"
	incarnationKey = "gavel-bus-incarnation"
)

// AuthorizationKey is the key of a caller's token. Only the server's authenticators see it.
const AuthorizationKey = "authorization"

// IsOwn reports whether a key of metadata is the caller's own: not a credential, and not one that gRPC or the front adds to calls.
func IsOwn(key string) bool {
	switch key {
	case "user-agent", "te", "content-type", AuthorizationKey:
		return false
	case incarnationKey:
		return true
	}
	return !strings.HasPrefix(key, ":") && !strings.HasPrefix(key, "grpc-") && !strings.HasPrefix(key, prefix)
}

// Own returns the part of some metadata that is the caller's own.
func Own(all metadata.MD) metadata.MD {
	own := make(metadata.MD, len(all))
	for key, values := range all {
		if IsOwn(key) {
			own[key] = values
		}
	}
	return own
}

// size returns the size of a caller's own metadata and token as HTTP/2 counts it: each field's name and value, and 32 bytes.
func size(all metadata.MD) int {
	bytes := 0
	for key, values := range all {
		if !IsOwn(key) && key != AuthorizationKey {
			continue
		}
		for _, value := range values {
			length := len(value)
			if strings.HasSuffix(key, "-bin") {
				length = base64.RawStdEncoding.EncodedLen(length)
			}
			bytes += len(key) + length + 32
		}
	}
	return bytes
}

// MemoryBytes returns roughly how much memory a call's headers take.
func MemoryBytes(all metadata.MD) int {
	bytes := 0
	for key, values := range all {
		for _, value := range values {
			bytes += len(key) + len(value) + 32
		}
	}
	return bytes
}

// isKey reports whether gRPC allows a key of metadata.
func isKey(key string) bool {
	return !strings.ContainsFunc(key, func(char rune) bool {
		return !(char >= 'a' && char <= 'z' || char >= '0' && char <= '9' || char == '-' || char == '_' || char == '.')
	})
}

// isNotPrintable reports whether a text has a byte outside printable ASCII, which gRPC does not allow in metadata.
func isNotPrintable(text string) bool {
	return strings.ContainsFunc(text, func(char rune) bool { return char < ' ' || char > '~' })
}

// Check returns an error if a caller's own metadata is too large to be passed on, or is not gRPC's: grpc-go would not send it on a forwarded
// call. Cutting it could change who the caller appears to be. A call may have `limit` bytes of headers. The error has no RetryInfo: the same
// call fails again.
func Check(all metadata.MD, limit int) error {
	limit -= addedBytes
	if bytes := size(all); bytes > limit {
		return status.Errorf(codes.ResourceExhausted, "the call has %d bytes of metadata; the limit is %d: send less", bytes, limit)
	}
	for key, values := range all {
		if !IsOwn(key) {
			continue
		}
		if !isKey(key) {
			return status.Errorf(codes.Internal, "metadata key %q has a character other than 0-9, a-z, -, _ and .", key)
		}
		if !strings.HasSuffix(key, "-bin") && slices.ContainsFunc(values, isNotPrintable) {
			return status.Errorf(codes.Internal, "the value of metadata key %q is not printable ASCII; give bytes to a key that ends in -bin", key)
		}
	}
	return nil
}
