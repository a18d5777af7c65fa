// Linearizability checks histories of Gavel's clients with porcupine: is there one order of all operations, each between its call and its
// return, that one log without failures could have produced? Nothing of Gavel runs in it.
//
//	linearizability HISTORY [LIMIT]
//
// HISTORY has one operation a line, in JSON (operation below). LIMIT is the largest sum of the amounts of approvals; without it there is none.
// The last line of the output is the verdict. Exit status: 0 linearizable, 1 not, 2 unreadable, 3 undecided in the time allowed.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"
)

const checkTime = 5 * time.Minute

// An entry is one event that a client wrote, as an answer or a read shows it.
type entry struct {
	ID       string  `json:"id"`       // chosen by the client; a repeated request has the same one
	Position uint64  `json:"position"` // sequence number
	Digest   string  `json:"digest"`   // chain hash
	Outcome  string  `json:"outcome"`  // of a decision: approved, over_budget, or another one
	Amount   float64 `json:"amount"`   // of a decision, counted against the limit if it is approved
	Claims   string  `json:"claims"`   // of the start of an attempt: the decision
	Finishes string  `json:"finishes"` // of a report: the decision
}

// An operation is one call of one client to one bus.
type operation struct {
	Client int    `json:"client"`
	Bus    string `json:"bus"`
	Call   int64  `json:"call"`   // nanoseconds
	Return int64  `json:"return"` // nanoseconds; 0: no answer, so it may take effect at any later time, or never
	// write: the request ID was answered with Entries[0]; without entries the answer did not show the event, or there was none.
	// read: the entries after position After; Complete: up to the head, else some first ones.
	// refuse: a claim of the decision ID was refused, because another claim had come first.
	Kind     string  `json:"kind"`
	ID       string  `json:"id"`
	After    uint64  `json:"after"`
	Complete bool    `json:"complete"`
	Entries  []entry `json:"entries"`

	// Of the writes with one ID, the one that was called first writes; the others find its entry. This loses no order: an answered write took
	// effect before its return and after the first call. Without it, every write that has no answer would double the orders to try.
	writes bool
}

// A log is what the operations on one bus say of it: its entries in the order of their positions. The state of the model is the number of
// entries that are written.
type log struct {
	entries  []entry
	index    map[string]int // of an entry, by id
	conflict []string       // why an entry breaks a rule of the entries before it; "" if it does not
	claim    map[string]int // index of the claim, by decision
}

func newLog(history []operation, limit float64) *log {
	l := &log{index: map[string]int{}, claim: map[string]int{}}
	written := map[string]bool{}
	for _, o := range history {
		written[o.ID] = written[o.ID] || o.Kind == "write"
	}
	var all []entry
	for _, o := range history {
		all = append(all, o.Entries...)
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].Position < all[j].Position })
	for _, e := range all {
		if _, known := l.index[e.ID]; !known && written[e.ID] {
			l.index[e.ID] = len(l.entries)
			l.entries = append(l.entries, e)
		}
	}
	l.judge(limit)
	return l
}

// judge replays the entries: approvals stay within the limit, a rejection for the limit is right, each decision is claimed once and
// finished once, after its claim.
func (l *log) judge(limit float64) {
	sum := 0.0
	finished := map[string]bool{}
	for i, e := range l.entries {
		conflict := ""
		if i > 0 && l.entries[i-1].Position == e.Position {
			conflict = "has the position of " + l.entries[i-1].ID
		}
		switch e.Outcome {
		case "approved":
			if sum += e.Amount; sum > limit {
				conflict = fmt.Sprintf("approves %g in all, more than %g", sum, limit)
			}
		case "over_budget":
			if sum+e.Amount <= limit {
				conflict = fmt.Sprintf("is refused although %g of %g are free", limit-sum, limit)
			}
		}
		if e.Claims != "" {
			if _, claimed := l.claim[e.Claims]; claimed {
				conflict = "claims a decision that is claimed"
			} else {
				l.claim[e.Claims] = i
			}
		}
		if e.Finishes != "" {
			if _, claimed := l.claim[e.Finishes]; !claimed || finished[e.Finishes] {
				conflict = "finishes a decision that is not claimed, or is finished"
			}
			finished[e.Finishes] = true
		}
		l.conflict = append(l.conflict, conflict)
	}
}

// step applies one operation to a log of `size` entries; returns whether it may have had its result, and the new size.
func (l *log) step(size int, o operation) (bool, int) {
	switch o.Kind {
	case "write":
		i, seen := l.index[o.ID]
		if !seen || len(o.Entries) > 0 && o.Entries[0] != l.entries[i] {
			return false, size
		}
		if o.writes {
			return i == size && l.conflict[i] == "", size + 1
		}
		return i < size, size
	case "read":
		first := sort.Search(len(l.entries), func(i int) bool { return l.entries[i].Position > o.After })
		if first+len(o.Entries) > size || (o.Complete && first+len(o.Entries) < size && first < size) {
			return false, size
		}
		for i, e := range o.Entries {
			if e != l.entries[first+i] {
				return false, size
			}
		}
		return true, size
	case "refuse":
		i, claimed := l.claim[o.ID]
		return claimed && i < size, size
	}
	return false, size
}

// check returns the verdict on the history of one bus, and a description.
func check(bus string, history []operation, limit float64) (porcupine.CheckResult, string) {
	l := newLog(history, limit)
	first := map[string]int{}
	for i, o := range history {
		if earliest, found := first[o.ID]; o.Kind == "write" && (!found || o.Call < history[earliest].Call) {
			first[o.ID] = i
		}
	}
	var operations []porcupine.Operation
	for i, o := range history {
		_, seen := l.index[o.ID]
		o.writes = o.Kind == "write" && first[o.ID] == i
		if o.Kind == "write" && o.Return == 0 && !(o.writes && seen) {
			continue // it may have had no effect: nobody saw its entry, or another write explains it
		}
		end := o.Return
		if end == 0 {
			end = math.MaxInt64
		}
		operations = append(operations, porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Return: end})
	}
	model := porcupine.Model{
		Init: func() interface{} { return 0 },
		Step: func(state, input, _ interface{}) (bool, interface{}) {
			return l.step(state.(int), input.(operation))
		},
	}
	result, info := porcupine.CheckOperationsVerbose(model, operations, checkTime)
	if result == porcupine.Ok {
		return result, fmt.Sprintf("%s: %d operations, %d entries", bus, len(operations), len(l.entries))
	}
	for i, conflict := range l.conflict {
		if conflict != "" {
			return result, fmt.Sprintf("%s: event %d, %s, %s", bus, l.entries[i].Position, l.entries[i].ID, conflict)
		}
	}
	return result, bus + ": " + describeStuck(operations, info)
}

// describeStuck names the operation that returned first of those that no order explains.
func describeStuck(operations []porcupine.Operation, info porcupine.LinearizationInfo) string {
	longest := []int{}
	for _, partition := range info.PartialLinearizations() {
		for _, order := range partition {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	explained := map[int]bool{}
	for _, i := range longest {
		explained[i] = true
	}
	stuck := -1
	for i, o := range operations {
		if !explained[i] && (stuck < 0 || o.Return < operations[stuck].Return) {
			stuck = i
		}
	}
	if stuck < 0 {
		return "no order explains the operations"
	}
	text, _ := json.Marshal(operations[stuck].Input)
	return fmt.Sprintf("%d of %d operations have an order; the next to return has no place in it: %s", len(longest), len(operations), text)
}

func read(path string) (map[string][]operation, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	histories := map[string][]operation{}
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, 1<<26)
	for line := 1; scanner.Scan(); line++ {
		var o operation
		if err := json.Unmarshal(scanner.Bytes(), &o); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, line, err)
		}
		histories[o.Bus] = append(histories[o.Bus], o)
	}
	return histories, scanner.Err()
}

func run(arguments []string) int {
	if len(arguments) < 1 || len(arguments) > 2 {
		fmt.Fprintln(os.Stderr, "usage: linearizability HISTORY [LIMIT]")
		return 2
	}
	limit := math.Inf(1)
	if len(arguments) == 2 {
		var err error
		if limit, err = strconv.ParseFloat(arguments[1], 64); err != nil {
			fmt.Fprintln(os.Stderr, "linearizability: LIMIT is not a number:", arguments[1])
			return 2
		}
	}
	histories, err := read(arguments[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, "linearizability:", err)
		return 2
	}
	status := 0
	for bus, history := range histories {
		result, description := check(bus, history, limit)
		switch result {
		case porcupine.Illegal:
			status = 1
		case porcupine.Unknown:
			if status == 0 {
				status = 3
			}
		}
		fmt.Printf("%s %s\n", result, description)
	}
	fmt.Println(map[int]string{0: "linearizable", 1: "not linearizable", 3: "undecided"}[status])
	return status
}

func main() {
	os.Exit(run(os.Args[1:]))
}
