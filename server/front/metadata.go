package main

import (
	"encoding/base64"
	"strings"

	"google.golang.org/grpc/metadata"
)

// How much of the limit of a call's headers is left to what gRPC and the front add on the way to the server. Beyond the limit grpc-go would
// end a forwarded call with an error of its own.
const addedHeaderBytes = 1 << 10

// The caller's address, in the metadata of a forwarded call: server/gavel_server/rpc/call_context.py. No caller can set it.
const peerKey = "gavel-peer"

// isOwn reports whether a key of metadata is the caller's own, and not one that gRPC or the front adds to every call.
func isOwn(key string) bool {
	switch key {
	case "user-agent", "te", "content-type", peerKey:
		return false
	}
	return !strings.HasPrefix(key, ":") && !strings.HasPrefix(key, "grpc-")
}

// ownMetadata returns the part of some metadata that is the caller's own.
func ownMetadata(all metadata.MD) metadata.MD {
	own := make(metadata.MD, len(all))
	for key, values := range all {
		if isOwn(key) {
			own[key] = values
		}
	}
	return own
}

// metadataBytes returns the size of a caller's own metadata as HTTP/2 counts it: each field's name and value, and 32 bytes.
func metadataBytes(all metadata.MD) int {
	size := 0
	for key, values := range all {
		if !isOwn(key) {
			continue
		}
		for _, value := range values {
			length := len(value)
			if strings.HasSuffix(key, "-bin") {
				length = base64.RawStdEncoding.EncodedLen(length)
			}
			size += len(key) + length + 32
		}
	}
	return size
}

// headersBytes returns how much memory a call's headers take, about.
func headersBytes(all metadata.MD) int {
	size := 0
	for key, values := range all {
		for _, value := range values {
			size += len(key) + len(value) + 32
		}
	}
	return size
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
