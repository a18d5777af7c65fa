// Package refusals has the errors with which the front refuses calls.
package refusals

import (
	"fmt"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// The retry delay of the front's own errors; gavel_server/errors.py: RETRY_AFTER_MS_DEFAULT.
const retryAfter = 200 * time.Millisecond

const errorDomain = "gavel"

// Decode returns the error in a frame of kind refusal: a google.rpc.Status with all its details.
func Decode(content []byte) error {
	var refusal statuspb.Status
	if err := proto.Unmarshal(content, &refusal); err != nil {
		return status.Errorf(codes.Internal, "the server's error status cannot be decoded: %v", err)
	}
	return status.ErrorProto(&refusal)
}

// PushbackKey is the key of trailing metadata that tells gRPC's own retries how long to wait, or with noRetry to give up.
const PushbackKey = "grpc-retry-pushback-ms"

const noRetry = "-1"

// Advice returns the trailing metadata of an error: the delay of its RetryInfo in milliseconds. For an exceeded limit without one it is noRetry, for other
// errors nothing. gavel_server/errors.py does the same.
func Advice(refusal *status.Status) metadata.MD {
	for _, detail := range refusal.Details() {
		if retry, ok := detail.(*errdetails.RetryInfo); ok {
			return metadata.Pairs(PushbackKey, strconv.FormatInt(retry.GetRetryDelay().AsDuration().Milliseconds(), 10))
		}
	}
	if refusal.Code() == codes.ResourceExhausted {
		return metadata.Pairs(PushbackKey, noRetry)
	}
	return nil
}

// Exhausted returns the refusal of a call that exceeds a limit. The caller may try again.
func Exhausted(message string) *status.Status {
	return Retriable(codes.ResourceExhausted, "QUEUE_FULL", message)
}

// Retriable returns an error of the front's own, with the details that gavel_server/errors.py gives to such an error.
func Retriable(code codes.Code, reason string, message string) *status.Status {
	return withDetails(status.New(code, message), reason, &errdetails.RetryInfo{RetryDelay: durationpb.New(retryAfter)})
}

// TooLarge returns the refusal of a request that exceeds its method's limit.
func TooLarge(limit int) *status.Status {
	return Invalid("request", fmt.Sprintf("is larger than %d bytes", limit))
}

// Invalid returns the refusal of malformed input, as gavel_server/errors.py does.
func Invalid(field string, description string) *status.Status {
	return withDetails(status.New(codes.InvalidArgument, field+" "+description), "INVALID_REQUEST", &errdetails.BadRequest{
		FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: field, Description: description}},
	})
}

// Unauthenticated returns the refusal of a call whose credentials are missing, invalid or over.
func Unauthenticated(message string) *status.Status {
	return withDetails(status.New(codes.Unauthenticated, message), "UNAUTHENTICATED")
}

func withDetails(refusal *status.Status, reason string, details ...protoadapt.MessageV1) *status.Status {
	info := &errdetails.ErrorInfo{Reason: reason, Domain: errorDomain}
	detailed, err := refusal.WithDetails(append([]protoadapt.MessageV1{info}, details...)...)
	if err != nil {
		return refusal
	}
	return detailed
}
