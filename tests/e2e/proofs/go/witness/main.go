// Witness is a witness of the C2SP protocol tlog-witness, of the libraries of transparency-dev: it cosigns the checkpoints of one log, in
// memory. It prints its URL and its verifier key, a line each, and serves until standard input ends.
//
//	witness LOG_VKEY
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	f_note "github.com/transparency-dev/formats/note"
	"github.com/transparency-dev/witness/persistence/inmemory"
	"github.com/transparency-dev/witness/witness"
	"golang.org/x/mod/sumdb/note"
)

func run(logKey string) error {
	log, err := note.NewVerifier(logKey)
	if err != nil {
		return err
	}
	secret, public, err := note.GenerateKey(rand.Reader, "witness.example/w1")
	if err != nil {
		return err
	}
	signer, err := f_note.NewSignerForCosignatureV1(secret)
	if err != nil {
		return err
	}
	verifierKey, err := f_note.VKeyToCosignatureV1(public)
	if err != nil {
		return err
	}
	one, err := witness.New(context.Background(), witness.Opts{
		Persistence: inmemory.New(),
		Signers:     []note.Signer{signer},
		VerifierForLog: func(_ context.Context, origin string) (note.Verifier, bool, error) {
			return log, origin == log.Name(), nil
		},
	})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /add-checkpoint", witness.NewHTTPHandler(one).AddCheckpoint)
	fmt.Printf("http://%s\n%s\n", listener.Addr(), verifierKey)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	return http.Serve(listener, mux)
}

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
