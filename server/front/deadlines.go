package main

import (
	"context"
	"time"
)

// How much before its deadline a call ends here, at most.
const earlyMax = 20 * time.Millisecond

// inTime returns the context of a call with a deadline a little before the call's own. At that one grpc-go resets the stream, and a caller
// who has not reached it by his own clock hears CANCELLED; before it, he can still be told DEADLINE_EXCEEDED.
func inTime(call context.Context) (context.Context, context.CancelFunc) {
	deadline, has := call.Deadline()
	if !has {
		return call, func() {}
	}
	return context.WithDeadline(call, deadline.Add(-min(earlyMax, time.Until(deadline)/10)))
}
