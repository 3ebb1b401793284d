// Asks the gRPC APIs that a node serves on this machine, with Kubernetes' own clients and types, and prints JSON.
//
//	localapi list SOCKET         the Pods API: all pods
//	localapi get SOCKET UID      one of them
//	localapi watch SOCKET        events, a line each, until the server ends it or nobody reads
//	localapi resources SOCKET    PodResources: the lists of v1 and v1alpha1
//	localapi fields              the numbers of a Pod's fields, as agent/src/pods_api/encode/fields.txt has them
//
// A refusal is one line on standard error: the code's name and the message.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		answer := status.Convert(err)
		fmt.Fprintf(os.Stderr, "%s: %s\n", answer.Code(), answer.Message())
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "fields":
		return printFields(os.Stdout)
	case len(args) == 3 && args[0] == "get":
		return withConnection(args[1], func(ctx context.Context, connection *grpc.ClientConn) error {
			return get(ctx, podsv1alpha1.NewPodsClient(connection), args[2])
		})
	case len(args) == 2 && args[0] == "list":
		return withConnection(args[1], list)
	case len(args) == 2 && args[0] == "watch":
		return withConnection(args[1], watch)
	case len(args) == 2 && args[0] == "resources":
		return withConnection(args[1], resources)
	default:
		return fmt.Errorf("what to do is said in main.go")
	}
}

func withConnection(socket string, do func(context.Context, *grpc.ClientConn) error) error {
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	return do(context.Background(), connection)
}

func list(ctx context.Context, connection *grpc.ClientConn) error {
	answer, err := podsv1alpha1.NewPodsClient(connection).ListPods(ctx, &podsv1alpha1.ListPodsRequest{})
	if err != nil {
		return err
	}
	pods := make([]*corev1.Pod, 0, len(answer.Pods))
	for _, bytes := range answer.Pods {
		pod, err := decode(bytes)
		if err != nil {
			return err
		}
		pods = append(pods, pod)
	}
	return print(pods)
}

func get(ctx context.Context, client podsv1alpha1.PodsClient, uid string) error {
	answer, err := client.GetPod(ctx, &podsv1alpha1.GetPodRequest{PodUID: uid})
	if err != nil {
		return err
	}
	pod, err := decode(answer.Pod)
	if err != nil {
		return err
	}
	return print(pod)
}

// An event of a watch; without a pod when everything that there was has been told.
type event struct {
	Type string      `json:"type"`
	Pod  *corev1.Pod `json:"pod,omitempty"`
}

func watch(ctx context.Context, connection *grpc.ClientConn) error {
	stream, err := podsv1alpha1.NewPodsClient(connection).WatchPods(ctx, &podsv1alpha1.WatchPodsRequest{})
	if err != nil {
		return err
	}
	for {
		received, err := stream.Recv()
		if err != nil {
			return err
		}
		told := event{Type: received.Type.String()}
		if received.Type != podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE {
			if told.Pod, err = decode(received.Pod); err != nil {
				return err
			}
		}
		if err := print(told); err != nil {
			return err
		}
	}
}

// A pod from its bytes.
func decode(bytes []byte) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := pod.Unmarshal(bytes); err != nil {
		return nil, err
	}
	return pod, nil
}

func print(value any) error {
	return json.NewEncoder(os.Stdout).Encode(value)
}
