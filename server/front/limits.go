package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"time"
)

// limits are the server's limits. They arrive as JSON in its order to serve. gavel_server/rpc/limits.py gives their values and reasons.
type limits struct {
	Connections             int               `json:"connections"`
	CallerConnections       int               `json:"caller_connections"`
	ConnectionCalls         int               `json:"connection_calls"`
	ConnectionBytes         int               `json:"connection_bytes"`
	BytesInFlight           int               `json:"bytes_in_flight"`
	SendBytes               int               `json:"send_bytes"`
	HeaderBytes             int               `json:"header_bytes"`
	HeaderListBytes         int               `json:"header_list_bytes"`
	Decompressions          int               `json:"decompressions"`
	ForwardedCalls          int               `json:"forwarded_calls"`
	Authentications         int               `json:"authentications"`
	LargeRequests           int               `json:"large_requests"`
	LargeRequestBytes       int               `json:"large_request_bytes"`
	Resets                  int               `json:"resets"`
	ResetSeconds            int               `json:"reset_seconds"`
	IdleSeconds             int               `json:"idle_seconds"`
	RequestSeconds          int               `json:"request_seconds"`
	StallSeconds            int               `json:"stall_seconds"`
	PingSecondsMin          int               `json:"ping_seconds_min"`
	KeepaliveSeconds        int               `json:"keepalive_seconds"`
	KeepaliveTimeoutSeconds int               `json:"keepalive_timeout_seconds"`
	MemoryBytes             int               `json:"memory_bytes"`
	Methods                 map[string]method `json:"methods"` // by path
}

// method holds the properties of a method that the front enforces.
type method struct {
	RequestBytes    int  `json:"request_bytes"` // of one message, before and after decompression
	ClientStreaming bool `json:"client_streaming"`
	IsOpen          bool `json:"is_open"`        // needs no credentials
	CountsAsIdle    bool `json:"counts_as_idle"` // a connection with such calls alone makes room for newcomers
}

// decodeLimits returns the limits in an order to serve. It returns an error if one is missing: nothing may be unlimited.
func decodeLimits(content []byte) (limits, error) {
	var limits limits
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&limits); err != nil {
		return limits, err
	}
	fields := reflect.ValueOf(limits)
	for index := range fields.NumField() {
		if fields.Field(index).IsZero() {
			return limits, fmt.Errorf("%s is missing", fields.Type().Field(index).Tag.Get("json"))
		}
	}
	for path, method := range limits.Methods {
		if method.RequestBytes <= 0 {
			return limits, fmt.Errorf("request_bytes of %s is missing", path)
		}
	}
	return limits, nil
}

func seconds(count int) time.Duration {
	return time.Duration(count) * time.Second
}
