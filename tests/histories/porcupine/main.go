// Checks with Porcupine that a history of one log is linearizable.
//
//	porcupine HISTORY.jsonl
//
// The model is a list of rows in the order of (position, value). An append adds the next row of
// this order. A read returns the rows from its first position to the end, and a total, which reads
// table and log as one, all of them. The ranges of compaction and the table are compared with it. Exit codes: 0 the history
// is linearizable, 1 it is not, 2 Porcupine did not decide in time.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// operation is one line of a history.
type operation struct {
	Op       string     `json:"op"`
	Process  string     `json:"process"`
	Begin    int64      `json:"begin"`
	End      *int64     `json:"end"`
	Outcome  string     `json:"outcome"`
	Values   []int64    `json:"values"`
	Position *int64     `json:"position"`
	Start    *int64     `json:"start"`
	Rows     [][2]int64 `json:"rows"`
	To       *int64     `json:"to"`
	Cut      int64      `json:"cut"`
	Floor    bool       `json:"floor"`
}

// row is a value and its position in the log.
type row struct{ position, value int64 }

func (a row) before(b row) bool {
	if a.position != b.position {
		return a.position < b.position
	}
	return a.value < b.value
}

// step is an operation of the model.
type step struct {
	isRead bool
	row    int // an append: the number of its row
	count  int // a read: how many rows the log has; -1 if no log has such rows
	name   string
}

// unplaced is the row of an acknowledged append that no position is known of.
const unplaced = -1

func fail(format string, about ...any) {
	fmt.Printf(format+"\n", about...)
	os.Exit(1)
}

func read(path string) (bool, []operation) {
	file, err := os.Open(path)
	if err != nil {
		fail("%v", err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<28)
	hasFloor := false
	var operations []operation
	for lines.Scan() {
		var one operation
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			fail("%v", err)
		}
		if one.Op == "history" {
			hasFloor = one.Floor
		} else {
			operations = append(operations, one)
		}
	}
	if err := lines.Err(); err != nil {
		fail("%v", err)
	}
	return hasFloor, operations
}

// attempts are all attempts to append one value.
type attempts struct {
	begin, end int64
	may        bool
}

func main() {
	hasFloor, operations := read(os.Args[1])
	positions := map[int64]int64{}
	place := func(value, position int64) {
		if known, ok := positions[value]; ok && known != position {
			fail("value %d is at positions %d and %d", value, known, position)
		}
		positions[value] = position
	}
	appends := map[int64]*attempts{}
	for _, one := range operations {
		if one.Op != "append" {
			continue
		}
		for _, value := range one.Values {
			of, ok := appends[value]
			if !ok {
				of = &attempts{begin: one.Begin, end: math.MaxInt64}
				appends[value] = of
			}
			of.begin = min(of.begin, one.Begin)
			of.may = of.may || one.Outcome != "failed"
			if one.Outcome == "ok" && one.End != nil {
				of.end = min(of.end, *one.End)
				if one.Position != nil && *one.Position >= 0 {
					place(value, *one.Position)
				}
			}
		}
	}
	seen := func(value, end int64) {
		of, ok := appends[value]
		if !ok || !of.may {
			fail("value %d was read, and no append may have written it", value)
		}
		// What was read is in the log since the read ended, or earlier.
		of.end = min(of.end, end)
	}
	var reads, totals, tables, ranges []operation
	for _, one := range operations {
		if one.Outcome != "ok" {
			continue
		}
		switch {
		case one.Op == "read":
			reads = append(reads, one)
		case one.Op == "total":
			totals = append(totals, one)
		case one.Op == "table":
			tables = append(tables, one)
		case one.To != nil:
			ranges = append(ranges, one)
		default:
			continue
		}
		for _, pair := range one.Rows {
			place(pair[1], pair[0])
			seen(pair[1], *one.End)
		}
		if one.Op != "total" && one.Op != "table" {
			continue
		}
		for _, value := range one.Values {
			seen(value, *one.End)
		}
	}
	var order []row
	for value, position := range positions {
		order = append(order, row{position, value})
	}
	sort.Slice(order, func(i, j int) bool { return order[i].before(order[j]) })
	var history []porcupine.Operation
	add := func(input step, begin, end int64) {
		history = append(history, porcupine.Operation{
			ClientId: len(history), Input: input, Call: begin, Return: max(begin, end),
		})
	}
	for number, one := range order {
		of := appends[one.value]
		add(step{row: number, name: fmt.Sprintf("append %d", one.value)}, of.begin, of.end)
	}
	for value, of := range appends {
		if _, ok := positions[value]; !ok && of.end < math.MaxInt64 {
			add(step{row: unplaced, name: fmt.Sprintf("append %d", value)}, of.begin, of.end)
		}
	}
	for _, one := range reads {
		input := step{isRead: true, count: expected(one, order, hasFloor)}
		input.name = fmt.Sprintf("read by %s of %d rows", one.Process, len(one.Rows))
		if len(one.Rows) > 0 || one.Start != nil || !hasFloor {
			add(input, one.Begin, *one.End)
		}
	}
	for _, one := range totals {
		input := step{isRead: true, count: prefix(one.Values, order)}
		input.name = fmt.Sprintf("total by %s of %d rows", one.Process, len(one.Values))
		add(input, one.Begin, *one.End)
	}
	for _, one := range tables {
		below := sort.Search(len(order), func(i int) bool { return order[i].position >= one.Cut })
		if prefix(one.Values, order) != below {
			fail("the table does not have the %d rows below %d", below, one.Cut)
		}
	}
	for _, one := range ranges {
		last := expected(one, order, hasFloor)
		below := sort.Search(len(order), func(i int) bool { return order[i].position >= *one.To })
		if last != below {
			fail("%s compacted other rows than those below %d", one.Process, *one.To)
		}
	}
	model := porcupine.Model{
		Init: func() any { return 0 },
		Step: func(state, input, _ any) (bool, any) {
			count, this := state.(int), input.(step)
			if this.isRead {
				return this.count == count, count
			}
			return this.row == count, count + 1
		},
		DescribeOperation: func(input, _ any) string { return input.(step).name },
	}
	result, info := porcupine.CheckOperationsVerbose(model, history, time.Minute)
	if result == porcupine.Unknown {
		fmt.Println("not decided within a minute")
		os.Exit(2)
	}
	if result == porcupine.Illegal {
		picture := os.Args[1] + ".html"
		if err := porcupine.VisualizePath(model, info, picture); err != nil {
			fail("not linearizable (%v)", err)
		}
		fail("not linearizable: see %s", picture)
	}
	fmt.Printf("linearizable: %d operations\n", len(history))
}

// prefix is how many of the first rows of the log these values are; -1 if they are others. Values
// that no position is known of do not count.
func prefix(values []int64, order []row) int {
	rank := map[int64]int{}
	for number, one := range order {
		rank[one.value] = number
	}
	got := map[int64]bool{}
	count, last := 0, -1
	for _, value := range values {
		if got[value] {
			return -1
		}
		got[value] = true
		if number, ok := rank[value]; ok {
			count++
			last = max(last, number)
		}
	}
	if count != last+1 {
		return -1
	}
	return count
}

// expected is how many rows the log has if it returns the rows of a read; -1 if it cannot.
func expected(one operation, order []row, hasFloor bool) int {
	first := int64(0)
	if one.Start != nil {
		first = *one.Start
	} else if hasFloor && len(one.Rows) > 0 {
		first = one.Rows[0][0]
	}
	low := sort.Search(len(order), func(i int) bool { return order[i].position >= first })
	for number, pair := range one.Rows {
		at := low + number
		if at >= len(order) || order[at] != (row{pair[0], pair[1]}) {
			return -1
		}
	}
	return low + len(one.Rows)
}
