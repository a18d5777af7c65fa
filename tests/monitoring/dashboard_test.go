package monitoring

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
)

// Grafana puts values in place of these before it asks Prometheus.
var variables = strings.NewReplacer("$__rate_interval", "5m", "$__interval", "1m", "$__range", "1h")

// A variable of the dashboard: it is a regular expression of the chosen values.
var variable = regexp.MustCompile(`\$\{?[a-z]+\}?`)

// A query of a variable is not PromQL; it names a series and a label.
var labelValues = regexp.MustCompile(`^label_values\((.+), *([a-z_]+)\)$`)

// Every expression of the dashboard is valid PromQL, and so is the series of each of its variables.
func TestDashboard(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(folder, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct {
				Name, Type string
				Query      json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(content, &dashboard); err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			parse(t, panel.Title, target.Expr)
			count++
		}
	}
	for _, one := range dashboard.Templating.List {
		if one.Type != "query" {
			continue
		}
		var query struct{ Query string }
		if err := json.Unmarshal(one.Query, &query); err != nil {
			t.Fatal(err)
		}
		parts := labelValues.FindStringSubmatch(query.Query)
		if parts == nil {
			t.Fatalf("variable %s: %s", one.Name, query.Query)
		}
		parse(t, one.Name, parts[1])
		count++
	}
	if count < 10 {
		t.Errorf("the dashboard has %d expressions", count)
	}
}

func parse(t *testing.T, where, expression string) {
	t.Helper()
	if _, err := parser.ParseExpr(variable.ReplaceAllString(variables.Replace(expression), ".+")); err != nil {
		t.Errorf("%s: %s: %v", where, expression, err)
	}
}
