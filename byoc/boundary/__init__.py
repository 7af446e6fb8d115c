"""The boundary between host and regions: conversion of its tensors, and contracts that describe them."""
