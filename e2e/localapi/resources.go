package main

import (
	"context"

	"google.golang.org/grpc"
	"k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"
)

// A pod and its containers.
type resourcesOf struct {
	Namespace  string   `json:"namespace"`
	Name       string   `json:"name"`
	Containers []string `json:"containers"`
}

// Both versions' lists, by version.
func resources(ctx context.Context, connection *grpc.ClientConn) error {
	lists := map[string][]resourcesOf{"v1": {}, "v1alpha1": {}}
	listed, err := v1.NewPodResourcesListerClient(connection).List(ctx, &v1.ListPodResourcesRequest{})
	if err != nil {
		return err
	}
	for _, pod := range listed.PodResources {
		told := resourcesOf{pod.Namespace, pod.Name, []string{}}
		for _, container := range pod.Containers {
			told.Containers = append(told.Containers, container.Name)
		}
		lists["v1"] = append(lists["v1"], told)
	}
	older, err := v1alpha1.NewPodResourcesListerClient(connection).List(ctx, &v1alpha1.ListPodResourcesRequest{})
	if err != nil {
		return err
	}
	for _, pod := range older.PodResources {
		told := resourcesOf{pod.Namespace, pod.Name, []string{}}
		for _, container := range pod.Containers {
			told.Containers = append(told.Containers, container.Name)
		}
		lists["v1alpha1"] = append(lists["v1alpha1"], told)
	}
	return print(lists)
}
