package main

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A call with a deadline ends before it, by at most a tenth of its time; a call without one has none.
func TestCallsEndBeforeTheirDeadline(t *testing.T) {
	for _, given := range []time.Duration{10 * time.Millisecond, time.Second, time.Hour} {
		call, cancelCall := context.WithTimeout(context.Background(), given)
		ours, cancel := withMargin(call)
		theirs, _ := call.Deadline()
		deadline, has := ours.Deadline()
		early := theirs.Sub(deadline)
		if !has || early <= 0 || early > given/10 || early > marginMax {
			t.Errorf("of %v, it ends %v early", given, early)
		}
		cancel()
		cancelCall()
	}
	ours, cancel := withMargin(context.Background())
	defer cancel()
	if _, has := ours.Deadline(); has {
		t.Error("a call without a deadline has one")
	}
}

// A call ends with DeadlineExceeded at its deadline, and with Canceled when its caller has gone.
func TestWhyACallEnds(t *testing.T) {
	call, cancelCall := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancelCall()
	ours, cancel := withMargin(call)
	defer cancel()
	<-ours.Done()
	if !errors.Is(ours.Err(), context.DeadlineExceeded) {
		t.Error(ours.Err())
	}
	gone, leave := context.WithTimeout(context.Background(), time.Hour)
	theirs, cancelTheirs := withMargin(gone)
	defer cancelTheirs()
	leave()
	<-theirs.Done()
	if !errors.Is(theirs.Err(), context.Canceled) {
		t.Error(theirs.Err())
	}
}
