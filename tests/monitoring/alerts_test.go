// Package monitoring checks docs/monitoring with Prometheus's own parser, engine and templates: the expressions of the alerts and of the
// dashboard are valid, and each alert fires when it must and not before.
package monitoring

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/template"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
	"gopkg.in/yaml.v3"
)

const folder = "../../docs/monitoring"

// cases has the form of `promtool test rules`, of which it uses these fields.
type cases struct {
	RuleFiles          []string       `yaml:"rule_files"`
	EvaluationInterval model.Duration `yaml:"evaluation_interval"`
	Tests              []struct {
		Name        string         `yaml:"name"`
		Interval    model.Duration `yaml:"interval"`
		InputSeries []struct {
			Series string `yaml:"series"`
			Values string `yaml:"values"`
		} `yaml:"input_series"`
		AlertRuleTest []struct {
			EvalTime  model.Duration `yaml:"eval_time"`
			Alertname string         `yaml:"alertname"`
			ExpAlerts []alert        `yaml:"exp_alerts"`
		} `yaml:"alert_rule_test"`
	} `yaml:"tests"`
}

type alert struct {
	ExpLabels      map[string]string `yaml:"exp_labels"`
	ExpAnnotations map[string]string `yaml:"exp_annotations"`
}

// An alert fires after exactly the time that its rule names, with these labels and annotations.
func TestAlertsFire(t *testing.T) {
	rules := readRules(t)
	document := readCases(t)
	fired := map[string]bool{}
	for _, test := range document.Tests {
		t.Run(test.Name, func(t *testing.T) {
			var series []storage.Series
			for _, input := range test.InputSeries {
				metric, values, err := parser.ParseSeriesDesc(input.Series + " " + input.Values)
				if err != nil {
					t.Fatalf("%s %s: %v", input.Series, input.Values, err)
				}
				series = append(series, storage.NewListSeries(metric, samples(values, time.Duration(test.Interval))))
			}
			for _, check := range test.AlertRuleTest {
				rule, found := rules[check.Alertname]
				if !found {
					t.Fatalf("alerts.yaml has no alert %s", check.Alertname)
				}
				actual := firing(t, rule, series, time.Duration(document.EvaluationInterval), time.Duration(check.EvalTime))
				expected := check.ExpAlerts
				if !slices.EqualFunc(expected, actual, equal) {
					t.Errorf("%s at %s:\nexpected %v\nactual   %v", check.Alertname, check.EvalTime, expected, actual)
				}
				fired[check.Alertname] = fired[check.Alertname] || len(expected) > 0
			}
		})
	}
	for name := range rules {
		if !fired[name] {
			t.Errorf("alerts-test.yaml has no test in which %s fires", name)
		}
	}
}

// readRules returns the alerts by name. Parsing checks expressions, labels and templates.
func readRules(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	groups, errors := rulefmt.ParseFile(filepath.Join(folder, "alerts.yaml"), false)
	for _, err := range errors {
		t.Error(err)
	}
	if t.Failed() {
		t.FailNow()
	}
	rules := map[string]rulefmt.Rule{}
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			if _, found := rules[rule.Alert]; found || rule.Alert == "" {
				t.Errorf("alerts.yaml has a second alert %q, or one without a name", rule.Alert)
			}
			rules[rule.Alert] = rule
		}
	}
	return rules
}

func readCases(t *testing.T) cases {
	t.Helper()
	content, err := os.Open(filepath.Join(folder, "alerts-test.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	decoder := yaml.NewDecoder(content)
	decoder.KnownFields(true)
	var document cases
	if err := decoder.Decode(&document); err != nil {
		t.Fatal(err)
	}
	if len(document.RuleFiles) != 1 || document.RuleFiles[0] != "alerts.yaml" {
		t.Fatalf("alerts-test.yaml names the rules %v", document.RuleFiles)
	}
	return document
}

// firing evaluates a rule from the beginning, as Prometheus does, and returns what fires at the end: the alerts whose expression has held for
// the time of the rule.
func firing(t *testing.T, rule rulefmt.Rule, series []storage.Series, interval, end time.Duration) []alert {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 100_000, Timeout: time.Minute})
	storage := store{series}
	since := map[string]time.Duration{}
	var last promql.Vector
	for now := time.Duration(0); now <= end; now += interval {
		query, err := engine.NewInstantQuery(context.Background(), storage, nil, rule.Expr, at(now))
		if err != nil {
			t.Fatalf("%s: %v", rule.Alert, err)
		}
		result := query.Exec(context.Background())
		vector, err := result.Vector()
		if err != nil {
			t.Fatalf("%s: %v", rule.Alert, err)
		}
		held := map[string]time.Duration{}
		for _, sample := range vector {
			key := sample.Metric.String()
			began, found := since[key]
			if !found {
				began = now
			}
			held[key] = began
		}
		since, last = held, slices.Clone(vector)
		query.Close()
	}
	var alerts []alert
	for _, sample := range last {
		if end-since[sample.Metric.String()] >= time.Duration(rule.For) {
			alerts = append(alerts, describe(t, rule, sample, end))
		}
	}
	slices.SortFunc(alerts, func(a, b alert) int { return slices.Compare(flat(a.ExpLabels), flat(b.ExpLabels)) })
	return alerts
}

// describe returns an alert as its receivers get it.
func describe(t *testing.T, rule rulefmt.Rule, sample promql.Sample, now time.Duration) alert {
	t.Helper()
	expand := func(text string) string {
		data := template.AlertTemplateData(sample.Metric.Map(), map[string]string{}, "", sample)
		// What Prometheus puts before every template of a rule.
		definitions := "{{$labels := .Labels}}{{$value := .Value}}"
		expander := template.NewTemplateExpander(
			context.Background(), definitions+text, rule.Alert, data, model.TimeFromUnixNano(int64(now)), nil, &url.URL{}, nil,
		)
		expanded, err := expander.Expand()
		if err != nil {
			t.Fatalf("%s: %v", rule.Alert, err)
		}
		return expanded
	}
	described := alert{ExpLabels: map[string]string{}, ExpAnnotations: map[string]string{}}
	for name, value := range sample.Metric.Map() {
		if name != labels.MetricName {
			described.ExpLabels[name] = value
		}
	}
	for name, text := range rule.Labels {
		described.ExpLabels[name] = expand(text)
	}
	for name, text := range rule.Annotations {
		described.ExpAnnotations[name] = expand(text)
	}
	return described
}

func equal(a, b alert) bool {
	return maps.Equal(a.ExpLabels, b.ExpLabels) && maps.Equal(a.ExpAnnotations, b.ExpAnnotations)
}

func flat(values map[string]string) []string {
	var pairs []string
	for name, value := range values {
		pairs = append(pairs, fmt.Sprintf("%s=%s", name, value))
	}
	slices.Sort(pairs)
	return pairs
}

// store has a few series.
type store struct{ series []storage.Series }

// Querier returns a view of all of it.
func (s store) Querier(_, _ int64) (storage.Querier, error) {
	return querier{storage.NoopQuerier(), s.series}, nil
}

type querier struct {
	storage.Querier
	series []storage.Series
}

// Select returns the series that match.
func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var selected []storage.Series
	for _, series := range q.series {
		matches := func(matcher *labels.Matcher) bool { return matcher.Matches(series.Labels().Get(matcher.Name)) }
		if !slices.ContainsFunc(matchers, func(matcher *labels.Matcher) bool { return !matches(matcher) }) {
			selected = append(selected, series)
		}
	}
	return &seriesSet{selected, -1}
}

type seriesSet struct {
	series []storage.Series
	place  int
}

func (s *seriesSet) Next() bool                        { s.place++; return s.place < len(s.series) }
func (s *seriesSet) At() storage.Series                { return s.series[s.place] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

// samples returns the values at their times, without those that are left out.
func samples(values []parser.SequenceValue, interval time.Duration) []chunks.Sample {
	var found []chunks.Sample
	for number, value := range values {
		if !value.Omitted {
			found = append(found, sample{at(time.Duration(number) * interval).UnixMilli(), value.Value})
		}
	}
	return found
}

func at(now time.Duration) time.Time { return time.Unix(0, 0).Add(now).UTC() }

type sample struct {
	milliseconds int64
	value        float64
}

func (s sample) T() int64                      { return s.milliseconds }
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }
