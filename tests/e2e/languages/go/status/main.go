// Command status asks a server for the status of a bus, and for that of a bus that does not exist. It prints the answer and the detail of
// the error as one line of JSON.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	gavelv1 "github.com/gavel-dev/gavel/client/go/gavel/v1"
	"github.com/gavel-dev/gavel/connection"
)

const callSecondsMax = 20

func main() {
	options := connection.Flags()
	bus := flag.String("bus", "", "name of the bus")
	missing := flag.String("missing", "", "name of a bus that does not exist")
	flag.Parse()
	if err := run(options, *bus, *missing); err != nil {
		fmt.Fprintln(os.Stderr, "status:", err)
		os.Exit(1)
	}
}

func run(options *connection.Options, bus, missing string) error {
	channel, err := options.Open()
	if err != nil {
		return err
	}
	defer channel.Close()
	ctx, cancel := context.WithTimeout(context.Background(), callSecondsMax*time.Second)
	defer cancel()
	projections := gavelv1.NewProjectionServiceClient(channel)
	answer, err := projections.GetStatus(ctx, &gavelv1.GetStatusRequest{Bus: bus})
	if err != nil {
		return err
	}
	_, err = projections.GetStatus(ctx, &gavelv1.GetStatusRequest{Bus: missing})
	if err == nil {
		return fmt.Errorf("bus %s exists", missing)
	}
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return json.NewEncoder(os.Stdout).Encode(map[string]any{
				"head": answer.GetHeadSequenceNumber(), "code": status.Code(err).String(), "domain": info.GetDomain(), "reason": info.GetReason(),
			})
		}
	}
	return fmt.Errorf("the error has no ErrorInfo: %w", err)
}
