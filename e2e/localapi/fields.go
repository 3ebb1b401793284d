package main

import (
	"fmt"
	"io"
	"reflect"
	"sort"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Types whose form in JSON is not their message's.
var odd = map[string]bool{"Time": true, "Quantity": true, "IntOrString": true, "FieldsV1": true}

// Where the first line of a table comes from.
const head = `# The fields of a Pod in Kubernetes' protobuf, from the tags of its Go types: a message in a line, then a field in each.
# ...: the message's fields stand in JSON among those of its parent; []: many; {}: a map from string.
`

// Prints every message that a Pod holds, with its fields by their names in JSON.
func printFields(out io.Writer) error {
	lines := map[string][]string{}
	types := map[string]reflect.Type{}
	if err := describe(reflect.TypeFor[corev1.Pod](), lines, types); err != nil {
		return err
	}
	names := make([]string, 0, len(lines))
	for name := range lines {
		names = append(names, name)
	}
	sort.Strings(names)
	fmt.Fprint(out, head)
	for _, name := range names {
		fmt.Fprintf(out, "%s\n%s\n", name, strings.Join(lines[name], "\n"))
	}
	return nil
}

func describe(message reflect.Type, lines map[string][]string, types map[string]reflect.Type) error {
	name := message.Name()
	if known, there := types[name]; there {
		if known != message {
			return fmt.Errorf("%s and %s have one name", known, message)
		}
		return nil
	}
	types[name] = message
	if odd[name] {
		return nil
	}
	numbers := map[string]int{}
	for field := range message.Fields() {
		if field.Type == reflect.TypeFor[metav1.TypeMeta]() {
			// In JSON alone.
			continue
		}
		tag := strings.Split(field.Tag.Get("protobuf"), ",")
		if len(tag) < 2 {
			return fmt.Errorf("%s.%s has no number", name, field.Name)
		}
		number, err := strconv.Atoi(tag[1])
		if err != nil {
			return err
		}
		kind, inner, err := kindOf(field.Type)
		if err != nil {
			return fmt.Errorf("%s.%s: %w", name, field.Name, err)
		}
		json, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if json == "" {
			json = "..."
		}
		line := fmt.Sprintf(" %s %d %s", json, number, kind)
		numbers[line] = number
		lines[name] = append(lines[name], line)
		if inner != nil {
			if err := describe(inner, lines, types); err != nil {
				return err
			}
		}
	}
	sort.Slice(lines[name], func(i, j int) bool { return numbers[lines[name][i]] < numbers[lines[name][j]] })
	return nil
}

// A field's kind as the table has it, and the message in it. The tags are not to be trusted here: an int32 calls itself bytes.
func kindOf(field reflect.Type) (string, reflect.Type, error) {
	switch field.Kind() {
	case reflect.Pointer:
		return kindOf(field.Elem())
	case reflect.Slice:
		kind, inner, err := kindOf(field.Elem())
		return "[]" + kind, inner, err
	case reflect.Map:
		if field.Key().Kind() != reflect.String {
			return "", nil, fmt.Errorf("a map from %s", field.Key())
		}
		kind, inner, err := kindOf(field.Elem())
		return "{}" + kind, inner, err
	case reflect.Struct:
		return field.Name(), field, nil
	case reflect.String:
		return "string", nil, nil
	case reflect.Bool:
		return "bool", nil, nil
	case reflect.Int32, reflect.Int64:
		return "int", nil, nil
	default:
		return "", nil, fmt.Errorf("a kind without a name: %s", field)
	}
}
