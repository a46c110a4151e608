// Command podmonitor reads a PodMonitor from standard input as the Prometheus operator does, and
// fails where a field is unknown or of another type.
package main

import (
	"fmt"
	"io"
	"os"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = yaml.UnmarshalStrict(text, &monitoring.PodMonitor{})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
