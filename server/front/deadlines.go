package main

import (
	"context"
	"time"
)

// The most by which the front ends a call before its deadline.
const marginMax = 20 * time.Millisecond

// withMargin returns a context whose deadline is a little before the call's own. At the call's own deadline grpc-go resets the stream, and a
// caller whose clock has not reached it gets CANCELLED; before it, the caller can still be told DEADLINE_EXCEEDED.
func withMargin(call context.Context) (context.Context, context.CancelFunc) {
	deadline, has := call.Deadline()
	if !has {
		return call, func() {}
	}
	return context.WithDeadline(call, deadline.Add(-min(marginMax, time.Until(deadline)/10)))
}
