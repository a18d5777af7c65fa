package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// limitsOfTests returns limits like the server's.
func limitsOfTests() limits {
	return limits{
		Connections: 4, CallerConnections: 4, ConnectionCalls: 8, ConnectionBytes: 4 << 20, BytesInFlight: 16 << 20,
		SendBytes: 64 << 20, HeaderBytes: 16 << 10, HeaderListBytes: 64 << 10, Decompressions: 4,
		ForwardedCalls: 4, Authentications: 4, LargeRequests: 2, LargeRequestBytes: 64 << 10,
		Resets: 10, ResetSeconds: 10, IdleSeconds: 300, RequestSeconds: 20, StallSeconds: 10, PingSecondsMin: 10,
		KeepaliveSeconds: 60, KeepaliveTimeoutSeconds: 20, MemoryBytes: 64 << 20,
		Methods: map[string]method{
			"/gavel.v1.EventService/GetEvent": {RequestBytes: 1000},
			"/grpc.health.v1.Health/Watch":    {RequestBytes: 1000, IsOpen: true, CountsAsIdle: true},
		},
	}
}

// Limits arrive as the server sends them; one that is missing, zero or unknown is an error.
func TestLimits(t *testing.T) {
	whole, err := json.Marshal(limitsOfTests())
	if err != nil {
		t.Fatal(err)
	}
	if decoded, err := decodeLimits(whole); err != nil || decoded.Methods["/gavel.v1.EventService/GetEvent"].RequestBytes != 1000 {
		t.Errorf("%v, %v", decoded, err)
	}
	for from, to := range map[string]string{
		`"resets":10`:          `"resets":0`,
		`"resets":10,`:         ``,
		`"request_bytes":1000`: `"request_bytes":0`,
		`"send_bytes"`:         `"bytes_sent"`,
	} {
		if _, err := decodeLimits([]byte(strings.Replace(string(whole), from, to, 1))); err == nil {
			t.Errorf("limits with %s in place of %s are taken", to, from)
		}
	}
}
