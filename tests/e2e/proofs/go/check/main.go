// Check verifies a proof file of Gavel, or the consistency of two checkpoints, with the libraries of Go's checksum database and of
// transparency-dev. Nothing of Gavel runs in it.
//
//	check proof FILE VKEY
//	check consistency FILE VKEY     FILE: JSON with from, to (checkpoints) and hashes (base64)
package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"golang.org/x/mod/sumdb/note"
)

type event struct {
	SequenceNumber uint64   `json:"sequence_number"`
	Envelope       []byte   `json:"envelope"`
	InclusionProof [][]byte `json:"inclusion_proof"`
}

type document struct {
	Events     []event  `json:"events"`
	Checkpoint string   `json:"checkpoint"`
	From       string   `json:"from"`
	To         string   `json:"to"`
	Hashes     [][]byte `json:"hashes"`
}

// open verifies the signatures of a checkpoint and returns its size and root.
func open(checkpoint, vkey string) (uint64, []byte, error) {
	verifier, err := note.NewVerifier(vkey)
	if err != nil {
		return 0, nil, err
	}
	opened, err := note.Open([]byte(checkpoint), note.VerifierList(verifier))
	if err != nil {
		return 0, nil, err
	}
	lines := strings.Split(opened.Text, "\n")
	if len(lines) != 4 || lines[0] != verifier.Name() {
		return 0, nil, fmt.Errorf("unexpected checkpoint %q", opened.Text)
	}
	size, err := strconv.ParseUint(lines[1], 10, 64)
	if err != nil {
		return 0, nil, err
	}
	root, err := base64.StdEncoding.Strict().DecodeString(lines[2])
	return size, root, err
}

func checkProof(given document, vkey string) error {
	size, root, err := open(given.Checkpoint, vkey)
	if err != nil {
		return err
	}
	if len(given.Events) < 2 {
		return fmt.Errorf("the proof has %d events", len(given.Events))
	}
	for _, one := range given.Events {
		entry := sha256.Sum256(one.Envelope)
		leaf := rfc6962.DefaultHasher.HashLeaf(entry[:])
		if err := proof.VerifyInclusion(rfc6962.DefaultHasher, one.SequenceNumber-1, size, leaf, one.InclusionProof, root); err != nil {
			return err
		}
	}
	return nil
}

func checkConsistency(given document, vkey string) error {
	fromSize, fromRoot, err := open(given.From, vkey)
	if err != nil {
		return err
	}
	toSize, toRoot, err := open(given.To, vkey)
	if err != nil {
		return err
	}
	return proof.VerifyConsistency(rfc6962.DefaultHasher, fromSize, toSize, given.Hashes, fromRoot, toRoot)
}

func run(arguments []string) error {
	content, err := os.ReadFile(arguments[1])
	if err != nil {
		return err
	}
	var given document
	if err := json.Unmarshal(content, &given); err != nil {
		return err
	}
	if arguments[0] == "consistency" {
		return checkConsistency(given, arguments[2])
	}
	return checkProof(given, arguments[2])
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	fmt.Println("verified")
}
