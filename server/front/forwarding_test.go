package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gavel/front/internal/refusals"
)

// An error of the channel to the server does not show the path of the private socket, and says when to try again; errors of the server are kept.
func TestErrorsOfTheChannelToTheServer(t *testing.T) {
	limits := limitsOfTests()
	inner, err := newInner("unix:"+t.TempDir()+"/none.sock", &limits)
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	_, err = inner.NewStream(context.Background(), anyShape, "/x", grpc.WaitForReady(false))
	own := status.Convert(ownStatus(context.Background(), err))
	if own.Code() != codes.Unavailable || strings.Contains(own.Message(), "none.sock") || len(own.Details()) != 2 {
		t.Errorf("%v becomes %v", err, own)
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if own := ownStatus(over, status.Error(codes.Canceled, "latest balancer error: /none.sock")); status.Convert(own).Message() != "context canceled" {
		t.Errorf("a call that is over ends with %v", own)
	}
	for _, kept := range []error{refusals.Retriable(codes.Unavailable, "LOG_UNAVAILABLE", "x").Err(), status.Error(codes.NotFound, "x"), nil} {
		if own := ownStatus(context.Background(), kept); !errors.Is(own, kept) {
			t.Errorf("%v becomes %v", kept, own)
		}
	}
}
