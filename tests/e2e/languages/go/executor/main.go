// Command executor carries out approved decisions with the contract alone: it takes them from WorkService.Consume, begins each with
// BeginExecution, keeps its lease with RenewExecution while it works, reports with ReportExecution, and acknowledges the item.
//
// It prints one line for each step, so that a test can follow it.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	gavelv1 "github.com/gavel-dev/gavel/client/go/gavel/v1"
	"github.com/gavel-dev/gavel/connection"
)

const (
	callSecondsMax    = 20
	silenceMsMax      = 3_000
	heartbeatsPerLife = 3
)

type executor struct {
	executions gavelv1.ExecutionServiceClient
	bus        string
	producer   *gavelv1.Producer
	leaseMs    int32
	work       time.Duration
	poison     string

	sending sync.Mutex
	stream  gavelv1.WorkService_ConsumeClient
}

func main() {
	options := connection.Flags()
	bus := flag.String("bus", "", "name of the bus")
	group := flag.String("group", "executors", "name of the group of consumers")
	producer := flag.String("producer", "courier-go", "the executor's name in the log")
	leaseMs := flag.Int("lease-ms", 1_500, "length of a lease")
	workMs := flag.Int("work-ms", 0, "how long an action takes")
	deliveriesMax := flag.Int("deliveries-max", 0, "deliveries after which an item is parked; 0: the server's default")
	poison := flag.String("poison", "", "a subject whose items cannot be processed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	channel, err := options.Open()
	if err != nil {
		fail(err)
	}
	defer channel.Close()
	e := &executor{
		executions: gavelv1.NewExecutionServiceClient(channel),
		bus:        *bus,
		producer:   &gavelv1.Producer{Type: gavelv1.ProducerType_PRODUCER_TYPE_EXECUTOR, Id: *producer},
		leaseMs:    int32(*leaseMs),
		work:       time.Duration(*workMs) * time.Millisecond,
		poison:     *poison,
	}
	open := &gavelv1.OpenConsumer{
		Bus: *bus, Queue: gavelv1.WorkQueue_WORK_QUEUE_DECISIONS, Group: *group,
		DeliveriesMax: int32(*deliveriesMax), SilenceMsMax: silenceMsMax,
	}
	if err := e.run(ctx, gavelv1.NewWorkServiceClient(channel), open); err != nil {
		fail(err)
	}
}

// run carries out decisions until the context ends; then it settles what it has begun.
func (e *executor) run(ctx context.Context, works gavelv1.WorkServiceClient, open *gavelv1.OpenConsumer) error {
	consuming, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := works.Consume(consuming)
	if err != nil {
		return err
	}
	e.stream = stream
	if err := e.send(&gavelv1.ConsumeRequest{Action: &gavelv1.ConsumeRequest_Open{Open: open}}); err != nil {
		return err
	}
	go e.sendHeartbeats(consuming)
	var working sync.WaitGroup
	go func() {
		<-ctx.Done()
		working.Wait()
		e.sending.Lock()
		defer e.sending.Unlock()
		// The server settles what was sent, then it ends the stream.
		_ = stream.CloseSend()
	}()
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch item := response.GetItem().(type) {
		case *gavelv1.ConsumeResponse_Opened:
			fmt.Println("opened", item.Opened.GetConsumer())
		case *gavelv1.ConsumeResponse_NotHeld:
			fmt.Println("not held", item.NotHeld.GetItemId())
		case *gavelv1.ConsumeResponse_Work:
			if ctx.Err() != nil {
				continue // the server gives it to others
			}
			working.Add(1)
			go func() {
				defer working.Done()
				if err := e.process(consuming, item.Work); err != nil {
					fail(err)
				}
			}()
		}
	}
}

// process carries out the decision of an item and settles the item.
func (e *executor) process(ctx context.Context, item *gavelv1.WorkItem) error {
	if item.GetEnvelope().GetSubject() == e.poison {
		fmt.Println("rejected", item.GetItemId(), item.GetDelivery())
		return e.reject(item, 0, "the parcel is broken")
	}
	asked := time.Now()
	begun, err := e.begin(ctx, item.GetEnvelope().GetDecision().GetDecisionId())
	if err != nil {
		return err
	}
	if refusal := begun.GetRefusal(); refusal != nil {
		fmt.Println("refused", item.GetItemId(), refusal.GetReason())
		if slices.Contains(refusal.GetRemedy(), gavelv1.Remedy_REMEDY_WAIT) {
			return e.reject(item, refusal.GetRetryAfterMs(), refusal.GetReasonCode())
		}
		return e.acknowledge(item)
	}
	started := begun.GetStarted()
	fmt.Println("began", item.GetItemId(), started.GetAttempt())
	if err := e.act(ctx, started, asked); err != nil {
		return err
	}
	if err := e.report(ctx, started); err != nil {
		return err
	}
	fmt.Println("reported", item.GetItemId(), started.GetAttempt())
	return e.acknowledge(item)
}

func (e *executor) begin(ctx context.Context, decisionID string) (*gavelv1.BeginExecutionResponse, error) {
	call, cancel := context.WithTimeout(ctx, callSecondsMax*time.Second)
	defer cancel()
	return e.executions.BeginExecution(call, &gavelv1.BeginExecutionRequest{
		Bus: e.bus, DecisionId: decisionID, Producer: e.producer, LeaseMs: e.leaseMs, RequestId: newID(),
	})
}

// act does the work under the lease, which it renews at a third of its length. It stops if the lease cannot be kept.
func (e *executor) act(ctx context.Context, started *gavelv1.ExecutionStarted, asked time.Time) error {
	lease := time.Duration(started.GetLeaseMs()) * time.Millisecond
	until := asked.Add(lease)
	done := time.After(e.work)
	for {
		select {
		case <-done:
			return nil
		case <-time.After(lease / 3):
		}
		asked = time.Now()
		call, cancel := context.WithDeadline(ctx, until)
		_, err := e.executions.RenewExecution(call, &gavelv1.RenewExecutionRequest{
			Bus: e.bus, DecisionId: started.GetDecision().GetDecision().GetDecisionId(), ExecutionId: started.GetExecutionId(),
			Producer: e.producer, LeaseMs: e.leaseMs, RequestId: newID(),
		})
		cancel()
		if err != nil {
			return fmt.Errorf("the lease of %s is lost: %w", started.GetExecutionId(), err)
		}
		until = asked.Add(lease)
		fmt.Println("renewed", started.GetExecutionId())
	}
}

func (e *executor) report(ctx context.Context, started *gavelv1.ExecutionStarted) error {
	result, err := structpb.NewStruct(map[string]any{"carrier": "go"})
	if err != nil {
		return err
	}
	decision := started.GetDecision()
	execution := &gavelv1.Execution{
		DecisionId: decision.GetDecision().GetDecisionId(), ExecutionId: started.GetExecutionId(), Attempt: started.GetAttempt(),
		Status: gavelv1.ExecutionStatus_EXECUTION_STATUS_SUCCESS, Result: result,
	}
	call, cancel := context.WithTimeout(ctx, callSecondsMax*time.Second)
	defer cancel()
	_, err = e.executions.ReportExecution(call, &gavelv1.ReportExecutionRequest{Bus: e.bus, Envelope: &gavelv1.Envelope{
		EventId: newID(), Subject: decision.GetSubject(), TraceId: decision.GetTraceId(), CausationId: decision.GetEventId(),
		Producer: e.producer, Payload: &gavelv1.Envelope_Execution{Execution: execution},
	}})
	return err
}

func (e *executor) acknowledge(item *gavelv1.WorkItem) error {
	return e.send(&gavelv1.ConsumeRequest{Action: &gavelv1.ConsumeRequest_Acknowledge{
		Acknowledge: &gavelv1.AcknowledgeWork{ItemId: item.GetItemId()},
	}})
}

func (e *executor) reject(item *gavelv1.WorkItem, delayMs int32, reason string) error {
	return e.send(&gavelv1.ConsumeRequest{Action: &gavelv1.ConsumeRequest_Reject{
		Reject: &gavelv1.RejectWork{ItemId: item.GetItemId(), DelayMs: delayMs, Reason: reason},
	}})
}

func (e *executor) sendHeartbeats(ctx context.Context) {
	ticks := time.NewTicker(silenceMsMax / heartbeatsPerLife * time.Millisecond)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			beat := &gavelv1.ConsumeRequest_Heartbeat{Heartbeat: &gavelv1.ConsumerHeartbeat{}}
			if e.send(&gavelv1.ConsumeRequest{Action: beat}) != nil {
				return // Recv returns the reason
			}
		}
	}
}

// send sends a request. Only one goroutine may send on a stream.
func (e *executor) send(request *gavelv1.ConsumeRequest) error {
	e.sending.Lock()
	defer e.sending.Unlock()
	return e.stream.Send(request)
}

// newID returns a UUIDv4.
func newID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "executor:", err)
	os.Exit(1)
}
